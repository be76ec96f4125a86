# Airflow with our DAGs and what its own tasks call: registry, approval, push, watch; no torch, no kernels, no service.
# Stages run in pods of docker/train.Dockerfile (LOADMASTER_RUNNER=kubernetes).
#
#   docker build -f docker/airflow.Dockerfile -t loadmaster-airflow .
#
# A run is a clone of the repository that is mounted at /opt/repository (git-sync, or a checkout): DAGs are read from it, and
# its commit is the commit of the run. BASE and RELEASE as in placement.Dockerfile. docker/lock.sh writes the list.
ARG BASE=python:3.13-slim-bookworm

FROM ${BASE} AS build
ARG BASE
ARG RELEASE=0
WORKDIR /src
COPY docker/check-base.sh docker/
RUN sh docker/check-base.sh "${RELEASE}" "${BASE}"
RUN python3 -m venv /opt/loadmaster && python3 -m venv /opt/build
COPY docker/requirements-airflow.txt docker/requirements-build.txt docker/
# One of them ships as source: it is built by what the build list holds, not by what an index has today.
RUN /opt/build/bin/pip install --no-cache-dir --no-deps --require-hashes -r docker/requirements-build.txt \
    && /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --require-hashes \
        --wheel-dir /src/needed -r docker/requirements-airflow.txt \
    && /opt/loadmaster/bin/pip install --no-cache-dir --no-deps --no-index /src/needed/*.whl && rm -r /src/needed
COPY pyproject.toml README.md LICENSE ./
COPY wire wire
COPY sched_env sched_env
COPY pipeline pipeline
COPY dags dags
COPY docker/sbom.py docker/
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --no-index --wheel-dir /src/wheels . \
    && /opt/loadmaster/bin/pip install --no-cache-dir --no-deps --no-index /src/wheels/*.whl

FROM ${BASE}
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends git ca-certificates >/dev/null && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --no-create-home --home-dir /var/lib/loadmaster --shell /usr/sbin/nologin loadmaster \
    && install -d -o 10001 -g 10001 -m 0750 /var/lib/loadmaster /opt/repository
COPY --from=build /opt/loadmaster /opt/loadmaster
COPY --from=build /src/docker/sbom.py /tmp/sbom.py
RUN /opt/loadmaster/bin/python /tmp/sbom.py loadmaster-airflow /usr/share/sbom/loadmaster-airflow.cdx.json && rm /tmp/sbom.py
# The mounted clone belongs to whoever made it: git wants to be told before it reads another user's repository.
ENV PATH=/opt/loadmaster/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/var/lib/loadmaster \
    AIRFLOW_HOME=/var/lib/loadmaster/airflow \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/repository/dags \
    AIRFLOW__CORE__LOAD_EXAMPLES=False \
    AIRFLOW__USAGE_DATA_COLLECTION__ENABLED=False \
    LOADMASTER_REPO=/opt/repository \
    LOADMASTER_RUNNER=kubernetes \
    LOADMASTER_VAR=/var/lib/loadmaster \
    GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0=/opt/repository \
    ORT_DISABLE_TELEMETRY=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /var/lib/loadmaster
VOLUME /var/lib/loadmaster
EXPOSE 8080
ENTRYPOINT ["python", "-m", "airflow"]
CMD ["version"]
