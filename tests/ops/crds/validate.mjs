// Reads a JSON list of manifests from stdin and writes a list of the same length: null for a valid one, else what is wrong with it.
import * as v1 from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1";
import * as v1alpha1 from "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1alpha1";
import { readFileSync } from "node:fs";

const KINDS = {
  PodMonitor: v1.PodMonitor,
  ServiceMonitor: v1.ServiceMonitor,
  PrometheusRule: v1.PrometheusRule,
  AlertmanagerConfig: v1alpha1.AlertmanagerConfig,
};

function problem(manifest) {
  const Kind = KINDS[manifest.kind];
  if (!Kind) return `no validator for ${manifest.kind}`;
  try {
    new Kind(manifest).validate();
    return null;
  } catch (error) {
    return String(error.message);
  }
}

process.stdout.write(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(problem)));
