"""The features that `check` accepts are those that the Delta jar supports."""

from typing import Any

from pyspark.sql import SparkSession

from sluice_spark.lake.features import KNOWN_FEATURES


def test_the_accepted_features_are_those_of_delta_itself(spark: SparkSession) -> None:
    jvm: Any = spark.sparkContext._jvm
    features = (
        getattr(jvm, "org.apache.spark.sql.delta.TableFeature$")
        .__getattr__("MODULE$")
        .allSupportedFeaturesMap()
        .valuesIterator()
    )
    found = set()
    while features.hasNext():
        found.add(str(features.next().name()))
    assert found == KNOWN_FEATURES
