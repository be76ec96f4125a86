# What a stage's pod runs: the pipeline with torch, DVC and git; no Airflow, no service, no compiler.
#
#   docker build -f docker/train.Dockerfile -t loadmaster-train .
#   docker build -f docker/train.Dockerfile --build-arg BASE=nvidia/cuda:13.0.1-runtime-ubuntu24.04@sha256:... --build-arg RELEASE=1 .
#
# BASE must have Python 3.11-3.13 with venv, and apt. torch brings its own CUDA libraries (3 GB), so a plain Python base
# does too: the node needs the driver alone. TORCH=cpu takes whatever build of the pinned version pip is offered, for machines
# without a GPU; a release does not. RELEASE as in placement.Dockerfile. docker/lock.sh writes the lists.
ARG BASE=python:3.13-slim-bookworm

FROM ${BASE} AS build
ARG BASE
ARG RELEASE=0
ARG TORCH=cuda
# A folder of wheels that the builder has mounted; pip reads it by this name.
ARG PIP_FIND_LINKS=
WORKDIR /src
COPY docker/check-base.sh docker/
RUN sh docker/check-base.sh "${RELEASE}" "${BASE}"
RUN python3 -m venv /opt/loadmaster && python3 -m venv /opt/build
COPY docker/requirements-torch.txt docker/requirements-train.txt docker/requirements-build.txt docker/
RUN if [ "${TORCH}" = cuda ]; then \
        /opt/loadmaster/bin/pip install --no-cache-dir --no-deps --require-hashes -r docker/requirements-torch.txt; \
    elif [ "${RELEASE}" = 1 ]; then \
        echo "error: TORCH=${TORCH} in a release; expected cuda, whose files are known by their hashes" >&2; exit 2; \
    else \
        /opt/loadmaster/bin/pip install --no-cache-dir --no-deps "$(grep -o '^torch==[0-9.]*' docker/requirements-torch.txt)"; \
    fi
# One of them ships as source: it is built by what the build list holds, not by what an index has today.
RUN /opt/build/bin/pip install --no-cache-dir --no-deps --require-hashes -r docker/requirements-build.txt \
    && /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --require-hashes \
        --wheel-dir /src/needed -r docker/requirements-train.txt \
    && /opt/loadmaster/bin/pip install --no-cache-dir --no-deps --no-index /src/needed/*.whl && rm -r /src/needed
COPY pyproject.toml README.md LICENSE ./
COPY wire wire
COPY sched_env sched_env
COPY pipeline pipeline
COPY docker/sbom.py docker/
RUN /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --no-index --wheel-dir /src/wheels . \
    && /opt/loadmaster/bin/pip install --no-cache-dir --no-deps --no-index /src/wheels/*.whl
# A pod hands what is compiled here on to its clone (pipeline.workspace); a node with another CPU compiles for itself.
RUN cd / && /opt/loadmaster/bin/loadmaster compile

FROM ${BASE}
# git: a pod clones its run's branch.
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends git ca-certificates >/dev/null && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --no-create-home --home-dir /var/lib/loadmaster --shell /usr/sbin/nologin loadmaster \
    && install -d -o 10001 -g 10001 -m 0750 /var/lib/loadmaster
COPY --from=build /opt/loadmaster /opt/loadmaster
COPY --from=build /src/docker/sbom.py /tmp/sbom.py
RUN /opt/loadmaster/bin/python /tmp/sbom.py loadmaster-train /usr/share/sbom/loadmaster-train.cdx.json && rm /tmp/sbom.py
# Stages call the bare `python`. One thread a process: results do not depend on the number of cores.
ENV PATH=/opt/loadmaster/bin:/usr/local/bin:/usr/bin:/bin \
    HOME=/var/lib/loadmaster \
    LOADMASTER_VAR=/var/lib/loadmaster \
    OMP_NUM_THREADS=1 \
    ORT_DISABLE_TELEMETRY=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /var/lib/loadmaster
VOLUME /var/lib/loadmaster
ENTRYPOINT ["python", "-m"]
CMD ["pipeline.pods", "--help"]
