# The image of ingest: `sluice run`, and every command that needs neither Java nor Spark.
# Built from the root of the repository: docker build -f deploy/images/ingest.Dockerfile -t sluice-ingest:0.1.0 .
# Base images are named by full versions. Pin them by digest where you build (docker buildx imagetools inspect IMAGE): tags can be moved.
ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
# Two environments: hatchling makes the wheel and stays behind. Every package has its hash; nothing is compiled.
COPY requirements/build.txt requirements/service.txt requirements/
RUN python -m venv /build \
 && /build/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements/build.txt \
 && python -m venv /opt/sluice \
 && /opt/sluice/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements/service.txt
COPY pyproject.toml README.md LICENSE ./
COPY service/ service/
COPY spark_jobs/ spark_jobs/
RUN /build/bin/hatchling build -t wheel -d /dist \
 && /opt/sluice/bin/pip install --no-cache-dir --no-deps --no-index /dist/*.whl \
 && /opt/sluice/bin/python -m compileall -q /opt/sluice/lib \
 && /opt/sluice/bin/pip uninstall --yes --quiet setuptools pip

FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="sluice-ingest" \
      org.opencontainers.image.description="Streams committed PostgreSQL transactions into object storage." \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 185 sluice \
 && useradd --uid 185 --gid 185 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin sluice
COPY --from=build /opt/sluice /opt/sluice
ENV PATH=/opt/sluice/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONSAFEPATH=1
USER 185:185
# With a read-only root this is the one place to write.
WORKDIR /tmp
EXPOSE 9187
# The first SIGTERM drains, the second ends ingest at once. Ingest has no children, so nothing has to reap for it.
STOPSIGNAL SIGTERM
ENTRYPOINT ["sluice"]
CMD ["run"]
