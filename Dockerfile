# The demo with its weights inside: once built, it starts without a network. docs/deploy.md says how to build it.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim

# A Space runs its container as user 1000, whoever that is.
RUN useradd --create-home --uid 1000 demo
USER 1000
ENV HOME=/home/demo \
    PATH=/home/demo/.local/bin:$PATH
WORKDIR /home/demo/app

# pip reads this by itself. The torch of plain PyPI brings gigabytes of CUDA; an index of CPU builds has a small one.
ARG PIP_EXTRA_INDEX_URL=
COPY --chown=1000:1000 requirements.txt ./
RUN python -m pip install --user --no-cache-dir --disable-pip-version-check -r requirements.txt

COPY --chown=1000:1000 app.py spaces_config.yaml LICENSE ./
COPY --chown=1000:1000 specdemo specdemo
RUN python -m specdemo fetch

# Nothing is asked of another machine from here on.
ENV HOST=0.0.0.0 \
    PORT=7860 \
    HF_HUB_OFFLINE=1 \
    HF_HUB_DISABLE_TELEMETRY=1
EXPOSE 7860
HEALTHCHECK --interval=30s --timeout=10s --start-period=120s \
    CMD ["python", "-c", "import os, urllib.request as u; u.urlopen(f\"http://127.0.0.1:{os.environ['PORT']}/\", timeout=8)"]
CMD ["python", "app.py"]
