# The image of the applier: `sluice apply` with Spark, and Spark's executors in Kubernetes. Holds every jar that Spark needs: a start fetches nothing.
# Built from the root of the repository: docker build -f deploy/images/applier.Dockerfile -t sluice-applier:0.1.0 .
# Base images are named by full versions. Pin them by digest where you build (docker buildx imagetools inspect IMAGE): tags can be moved.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm
ARG JAVA_IMAGE=eclipse-temurin:17.0.17_10-jre-jammy

FROM ${JAVA_IMAGE} AS java

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
# Two environments: what makes wheels stays behind. Every package has its hash. PySpark has no wheel: one is made of its source, with tools that have theirs.
COPY requirements/build.txt requirements/spark.txt requirements/glue.txt requirements/
RUN python -m venv /build \
 && /build/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements/build.txt \
 && /build/bin/pip wheel --no-cache-dir --require-hashes --no-deps --only-binary :all: --no-binary pyspark --no-build-isolation \
      --wheel-dir /wheels -r requirements/spark.txt -r requirements/glue.txt \
 && python -m venv /opt/sluice \
 && /opt/sluice/bin/pip install --no-cache-dir --no-deps --no-index /wheels/*.whl
COPY pyproject.toml README.md LICENSE ./
COPY service/ service/
COPY spark_jobs/ spark_jobs/
RUN /build/bin/hatchling build -t wheel -d /dist \
 && /opt/sluice/bin/pip install --no-cache-dir --no-deps --no-index /dist/*.whl \
 && /opt/sluice/bin/python -m compileall -q /opt/sluice/lib/python3.11/site-packages/sluice /opt/sluice/lib/python3.11/site-packages/sluice_spark
# The jars, by Spark's own resolver, each compared with the sum that is recorded in the wheel.
COPY --from=java /opt/java/openjdk /opt/java/openjdk
ENV JAVA_HOME=/opt/java/openjdk \
    SLUICE_JARS=/opt/sluice/jars
RUN /opt/sluice/bin/python -m sluice_spark.jars fetch --s3 \
 && { /opt/sluice/bin/python -m sluice_spark.class_archive || echo "Spark will start without an archive of its classes"; } \
 && chmod -R a+rX /opt/sluice/jars \
 && /opt/sluice/bin/pip uninstall --yes --quiet setuptools pip

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="sluice-applier" \
      org.opencontainers.image.description="Applies spooled PostgreSQL transactions to Delta Lake tables, with Spark." \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN apt-get update \
 && apt-get install --yes --no-install-recommends tini=0.19.0-1* \
 && rm -rf /var/lib/apt/lists/* \
 && groupadd --gid 185 sluice \
 && useradd --uid 185 --gid 185 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin sluice
COPY --from=java /opt/java/openjdk /opt/java/openjdk
COPY --from=build /opt/sluice /opt/sluice
COPY --chmod=0755 deploy/images/entrypoint.sh /opt/sluice/entrypoint.sh
COPY --chmod=0644 deploy/images/apply.py /opt/sluice/apply.py
ENV JAVA_HOME=/opt/java/openjdk \
    SPARK_HOME=/opt/sluice/lib/python3.11/site-packages/pyspark \
    PYSPARK_PYTHON=/opt/sluice/bin/python \
    SLUICE_JARS=/opt/sluice/jars \
    PATH=/opt/sluice/bin:/opt/java/openjdk/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONSAFEPATH=1
USER 185:185
# The root is read-only.
WORKDIR /tmp
EXPOSE 9188
# tini reaps what Java leaves behind and hands signals to the applier alone, which finishes its merges before it stops Java.
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/bin/tini", "--", "/opt/sluice/entrypoint.sh"]
CMD ["apply"]
