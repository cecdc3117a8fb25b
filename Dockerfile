# The harness in an image: everything but the models and the engine.
#
#   docker build -t forkroll .
#   docker run --rm -it --pid host -v /var/run/docker.sock:/var/run/docker.sock -v "$PWD:$PWD" -w "$PWD" \
#       -e FORKROLL_CACHE="$PWD/.forkroll-cache" forkroll run docker-pocket
#
# Sandboxes are containers of the same engine, started beside this one: the engine must find the run folder and the cache
# under the names that they have in here, so both lie in a folder that is mounted where it is; and process ids must be the
# engine's (--pid host), so that `forkroll clean` knows the dead from the living.
ARG BASE=python:3.12-slim
FROM ${BASE}
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends git python3-venv ca-certificates \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/forkroll
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY harness harness
COPY analysis analysis
COPY configs configs
COPY data/pocket data/pocket
ARG EXTRAS=paper
# mini-swe-agent without its dependencies: nothing but its templates is read.
RUN python3 -m venv /opt/venv \
    && /opt/venv/bin/python -m pip install --no-cache-dir --disable-pip-version-check -c constraints.txt ".[${EXTRAS}]" \
    && /opt/venv/bin/python -m pip install --no-cache-dir --disable-pip-version-check --no-deps 'mini-swe-agent>=2.4,<3'
ENV PATH=/opt/venv/bin:$PATH
ENTRYPOINT ["forkroll"]
CMD ["--help"]
