# docker build -t norm_plugin . && docker run -v "$PWD/work:/norm_plugin/work" norm_plugin sweep toy norm=layernorm,rmsnorm
FROM python:3.11-slim
RUN apt-get update \
  && apt-get install --yes --no-install-recommends build-essential git \
  && rm -rf /var/lib/apt/lists/*
WORKDIR /norm_plugin
COPY . .
RUN scripts/setup.sh
ENTRYPOINT [".venv/bin/norm-plugin"]
