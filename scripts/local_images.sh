#!/usr/bin/env bash
# The images of deploy/docker without a registry and without a daemon, on Debian, as root: apt-get install buildah mmdebstrap
#
#   scripts/local_images.sh [TARGET...]      those of the Dockerfile: all of them unless told
#
# Where the base image is not there yet, one of its name is made of Debian's packages: trixie with its Python 3.13. It
# stands for the real one in a try; what is deployed is built on the real one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml | head -1)
base=docker.io/library/$(sed -n 's/^ARG PYTHON=//p' deploy/docker/Dockerfile)

if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  # What the real one has: `python` in the path, and a pip that installs.
  mmdebstrap --variant=minbase --include=ca-certificates,python3,python3-pip \
    --aptopt='APT::Install-Recommends "false"' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook='ln -s /usr/bin/python3 "$1/usr/local/bin/python"; rm "$1"/usr/lib/python3*/EXTERNALLY-MANAGED' \
    trixie "$work/base.tar"
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$work/base.tar" /
  buildah config --cmd python3 "$container"
  buildah commit --quiet --rm "$container" "$base"
fi

[ $# -gt 0 ] || set -- render multimodal multimodal-video orchestrator engine
for target; do
  case $target in
    render) name=render-tier:$version ;;
    multimodal*) name=render-tier:$version-$target ;;
    orchestrator) name=pd-orchestrator:$version ;;
    engine) name=embedded-engine:$version ;;
    *) echo "no target of the Dockerfile: $target" >&2; exit 2 ;;
  esac
  # Health checks are no part of OCI's format. The authorities are the machine's, for pip.
  buildah build --format docker --isolation chroot --network host --layers --pull-never \
    --volume /etc/ssl/certs:/etc/ssl/certs:ro -f deploy/docker/Dockerfile --target "$target" --tag "$name" .
done
buildah images
