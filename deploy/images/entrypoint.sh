#!/bin/bash
# What the applier's image runs: a command of Sluice, or, where Spark in Kubernetes asks for it, a driver or an executor.
# Spark's side of the contract is its own: the first argument is the role, everything else is in SPARK_* variables.
# (Spark: Running on Kubernetes.)
set -euo pipefail

# Hadoop asks the system for the name of the user, and ends where there is none.
if ! getent passwd "$(id -u)" > /dev/null; then
  echo "Spark cannot start as user $(id -u), which has no name in this container: run it as 185, as the image does" >&2
  exit 2
fi

case "${1:-apply}" in
  driver)
    # The Spark operator submits in cluster mode, and this pod is where the driver runs.
    shift
    exec "$SPARK_HOME/bin/spark-submit" --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" --deploy-mode client "$@"
    ;;
  executor)
    options=()
    for ((number = 0; ; number++)); do
      name="SPARK_JAVA_OPT_$number"
      [[ -v $name ]] || break
      options+=("${!name}")
    done
    # The jars of Delta and S3 are in the image of every executor: none is asked for over the network.
    classpath="${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*:$SLUICE_JARS/*"
    exec "$JAVA_HOME/bin/java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$classpath" \
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" \
      --executor-id "$SPARK_EXECUTOR_ID" \
      --cores "$SPARK_EXECUTOR_CORES" \
      --app-id "$SPARK_APPLICATION_ID" \
      --hostname "$SPARK_EXECUTOR_POD_IP" \
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
      --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
  *)
    exec sluice "${@:-apply}"
    ;;
esac
