#!/bin/sh
# Usage: chromium.sh PYTHON
# Print the path of a Chromium that runs: $CHROMIUM, the system's, or that of PYTHON's playwright.
# Installs one if there is none. What it does meanwhile goes to standard error.
set -eu
python=$1

runs() { "$1" --version >/dev/null 2>&1; } # a snap's stand-in is on the PATH, yet does not run

on_path() {
    for name in chromium chromium-browser google-chrome; do
        if path=$(command -v "$name") && runs "$path"; then
            echo "$path"
            return 0
        fi
    done
    return 1
}

playwrights_own() {
    path=$("$python" -c 'from playwright.sync_api import sync_playwright as start
with start() as playwright: print(playwright.chromium.executable_path)') && runs "$path" && echo "$path"
}

by_apt() {
    command -v apt-get >/dev/null || return 1
    if [ "$(id -u)" -eq 0 ]; then as_root=env; else as_root="sudo -n env"; fi
    $as_root true 2>/dev/null || return 1
    echo "Installing chromium with apt-get" >&2
    $as_root apt-get update >&2 &&
        $as_root DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium >&2
}

by_playwright() {
    echo "Installing Playwright's Chromium" >&2
    "$python" -m playwright install chromium >&2
}

if [ -n "${CHROMIUM:-}" ]; then
    runs "$CHROMIUM" || { echo "CHROMIUM=$CHROMIUM does not run" >&2; exit 1; }
    echo "$CHROMIUM"
elif on_path || playwrights_own; then
    :
elif by_apt && on_path; then
    :
elif by_playwright && playwrights_own; then
    :
else
    echo "The browser tests need a Chromium. Install the package chromium (Debian: apt-get install" >&2
    echo "chromium) or Google Chrome, or name the program: make test CHROMIUM=/path/to/chromium" >&2
    exit 1
fi
