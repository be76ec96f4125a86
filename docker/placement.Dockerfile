# The placement service: numpy, onnxruntime and a web server; no torch, no Airflow, no DVC, no numba, no gymnasium.
#
#   docker build -f docker/placement.Dockerfile -t loadmaster-placement .
#
# BASE must have Python 3.11-3.13 with venv. In a pipeline that publishes images give it by digest
# (--build-arg BASE=python:3.13-slim-bookworm@sha256:...), so that the same commit gives the same image.
# EXTRAS=serve,sim adds the kernels, which only the controller of the computing power network (CPN) runs.
ARG BASE=python:3.13-slim-bookworm

FROM ${BASE} AS build
ARG EXTRAS=serve
WORKDIR /src
RUN python3 -m venv /opt/loadmaster
# Dependencies first: they change less often than the code, and their layer is then reused.
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN mkdir wire sched_env placement \
    && touch wire/__init__.py sched_env/__init__.py placement/__init__.py \
    && /opt/loadmaster/bin/pip install --no-cache-dir -c constraints.txt ".[${EXTRAS}]" \
    && /opt/loadmaster/bin/pip uninstall --yes loadmaster
# Only what the service is made of: the pipeline has no business here.
COPY wire wire
COPY sched_env sched_env
COPY placement placement
RUN /opt/loadmaster/bin/pip install --no-cache-dir --no-deps . \
    && /opt/loadmaster/bin/python -m compileall -q /opt/loadmaster/lib

FROM ${BASE}
RUN useradd --uid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin loadmaster \
    && install -d -o 10001 -g 10001 -m 0750 /var/lib/loadmaster
COPY --from=build /opt/loadmaster /opt/loadmaster
ENV LOADMASTER_VAR=/var/lib/loadmaster \
    OMP_NUM_THREADS=1 \
    ORT_DISABLE_TELEMETRY=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
VOLUME /var/lib/loadmaster
EXPOSE 8100
# Kubernetes has its own probes; this one is for docker run and compose.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["/opt/loadmaster/bin/python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8100/healthz', timeout=2)"]
ENTRYPOINT ["/opt/loadmaster/bin/python", "-m", "placement"]
# Inside a container the network policy decides who gets in, not the address.
CMD ["--host", "0.0.0.0", "--port", "8100"]
