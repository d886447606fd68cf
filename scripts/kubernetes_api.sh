#!/usr/bin/env bash
# A real Kubernetes API server (1.20) and etcd for tests, from Debian bookworm's packages; prints their directory.
#
#   scripts/kubernetes_api.sh        make it if need be, then print its path (everything else goes to stderr)
#
# Debian has no binary package of the API server, but its source package `kubernetes` of bookworm holds the whole
# tree with its dependencies: that is compiled with bookworm's Go. Nothing is installed, and no root is needed.
# Elsewhere KUBEBUILDER_ASSETS=DIR names a directory with `etcd` and `kube-apiserver` of any version, such as
# envtest's; tests then take these, and this script is not called.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$here/scripts/cached_env.sh"
label=kubernetes-api

sources() { # the machine's own mirrors of the release, for source packages alone
  grep -qs '^VERSION_CODENAME=bookworm$' /etc/os-release || return 1
  local file=/etc/apt/sources.list.d/debian.sources
  [ -f "$file" ] && grep -q '^Suites:.*\bbookworm' "$file" || return 1
  sed -E 's/^Types:.*/Types: deb-src/' "$file"
}

unpacked() { # unpacked PACKAGE...: binary packages, under $work/unpacked
  (cd "$work" && apt-get download "$@")
  local package
  for package in "$work"/*.deb; do dpkg-deb -x "$package" "$work/unpacked"; done
}

source_package() {
  sources >"$work/debian.sources"
  local here=(-o "Dir::Etc::SourceList=/dev/null" -o "Dir::Etc::SourceParts=$work/sources.list.d"
    -o "Dir::State::Lists=$work/lists" -o "APT::Sandbox::User=")
  mkdir -p "$work/sources.list.d" "$work/lists/partial" "$work/source"
  mv "$work/debian.sources" "$work/sources.list.d/"
  apt-get "${here[@]}" update
  (cd "$work/source" && apt-get "${here[@]}" source --download-only kubernetes)
  mkdir -p "$work/go/src/k8s.io/kubernetes"
  tar -xzf "$work"/source/kubernetes_*.orig.tar.gz --strip-components=1 -C "$work/go/src/k8s.io/kubernetes"
}

compiled() {
  cd "$work/go/src/k8s.io/kubernetes"
  # The tree's own version of this package reads maps as Go did before 1.18, and crashes.
  rm -r vendor/github.com/modern-go/reflect2
  cp -r "$work/unpacked/usr/share/gocode/src/github.com/modern-go/reflect2" vendor/github.com/modern-go/
  export GOROOT=$work/unpacked/usr/lib/go-1.19 GOPATH=$work/go GOCACHE=$work/cache GO111MODULE=off CGO_ENABLED=0 GOFLAGS=
  local go=$GOROOT/bin/go
  # One source file is not in the tree, but made from the others: the types' descriptions.
  local packages
  packages=$(
    grep -rl --include='*.go' '^// +k8s:openapi-gen=' pkg \
      vendor/k8s.io/{api,apimachinery,apiextensions-apiserver,apiserver,client-go,cloud-provider,component-base}/ \
      vendor/k8s.io/{controller-manager,kube-aggregator,kube-controller-manager,kube-proxy,kube-scheduler}/ \
      vendor/k8s.io/{kubelet,metrics}/ \
      | xargs -n1 dirname | sort -u | sed 's#^#k8s.io/kubernetes/#' | paste -sd,
  )
  "$go" run ./vendor/k8s.io/kube-openapi/cmd/openapi-gen --logtostderr -i "$packages" \
    -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
    -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$work/violations"
  local version=k8s.io/kubernetes/vendor/k8s.io/component-base/version
  "$go" build -tags providerless -o "$target/kube-apiserver" \
    -ldflags "-s -w -X $version.gitVersion=v1.20.2 -X $version.gitMajor=1 -X $version.gitMinor=20" \
    ./cmd/kube-apiserver
}

build() {
  sources >/dev/null || die "needs Debian bookworm; elsewhere set KUBEBUILDER_ASSETS (see the top of this script)"
  run "Go and etcd" unpacked golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev etcd-server
  run "source package" source_package
  run "compiling" compiled
  cp "$work/unpacked/usr/bin/etcd" "$target/"
}

cached "kubernetes-api-$(sha256sum <"${BASH_SOURCE[0]}" | cut -c1-12)" 3000 \
  "some minutes of both cores, 150 MB when done" build
echo "$target"
