# A serving image: penstock and one of its serving extras, without torch. docs/deploying.md says how to run it.
#   docker build -t penstock .                                             onnxruntime on the CPU
#   docker build -t penstock-gpu --build-arg EXTRAS=serve-gpu .            onnxruntime and TensorRT on NVIDIA's GPUs
#   docker run --rm --read-only -p 127.0.0.1:8000:8000 -v "$PWD/models:/models:ro" penstock
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS build
# Extras of pyproject.toml, whose versions and hashes are in deploy/EXTRAS.lock.
ARG EXTRAS=serve
# Of whichever version the base's Debian has: strip takes symbols off libraries, and nothing of it is in the image.
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends binutils && rm -rf /var/lib/apt/lists/*
COPY deploy/build.lock /src/
RUN python -m venv /build \
 && /build/bin/pip install --no-cache-dir --require-hashes -r /src/build.lock
COPY deploy/*.lock /src/
RUN /build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --require-hashes \
      -r "/src/${EXTRAS}.lock" --wheel-dir /wheels
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY penstock penstock
COPY train train
COPY export export
COPY serve serve
COPY bench bench
# The environment has no pip, and of its packages no tests, headers, stubs of types and tools that serving never imports.
# Libraries that patchelf has been at, as those of numpy, must not be stripped: these two are not among them.
RUN /build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --no-index --wheel-dir /wheels . \
 && python -m venv --without-pip /opt/penstock \
 && /build/bin/pip --python /opt/penstock/bin/python install --no-deps --no-compile --no-index /wheels/*.whl \
 && /build/bin/pip --python /opt/penstock/bin/python check \
 && find /opt/penstock -depth -type d -regex '.*/site-packages/.*/\(tests?\|include\)' -exec rm -r {} + \
 && find /opt/penstock -type f -regex '.*\.\(pyi\|pyx\|pxd\|h\|a\)' -delete \
 && find /opt/penstock -depth -type d -regex '.*/onnxruntime/\(quantization\|tools\|transformers\)' -exec rm -r {} + \
 && find /opt/penstock -type f -regex '.*/\(httptools\|uvloop\)/.*\.so' -exec strip --strip-unneeded {} +
# Bytecode of what serving imports, the standard library's with it: nobody may write it where the server runs.
RUN PYTHONPYCACHEPREFIX=/opt/penstock/bytecode /opt/penstock/bin/python -c "import importlib, pkgutil; \
      import onnxruntime, uvloop, penstock.cli, penstock.health, penstock.runtimes.onnxruntime, penstock.serve as serve, PIL.Image; \
      PIL.Image.init(); [importlib.import_module('penstock.serve.' + each.name) for each in pkgutil.iter_modules(serve.__path__)]"

FROM ${BASE}
ARG BASE=python:3.12-slim-bookworm
ARG EXTRAS=serve
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
LABEL org.opencontainers.image.title="penstock" \
      org.opencontainers.image.description="Serves penstock artifacts and ONNX files over HTTP and gRPC (${EXTRAS})" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="${BASE}"
RUN useradd --system --no-log-init --uid 10001 --user-group --no-create-home penstock
COPY --from=build /opt/penstock /opt/penstock
ENV PATH=/opt/penstock/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONPYCACHEPREFIX=/opt/penstock/bytecode \
    PENSTOCK_CACHE=/tmp/penstock \
    PENSTOCK_SERVE_HOST=0.0.0.0
# By number, so that Kubernetes sees that it is not root.
USER 10001:10001
EXPOSE 8000 8001
VOLUME /models
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD ["penstock", "health"]
# The exec form, so that SIGTERM reaches the server and drains it.
ENTRYPOINT ["penstock"]
CMD ["serve", "/models"]
