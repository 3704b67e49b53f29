# Sourced by tools/test: fetches packages for the tests that Debian lacks from the Python package index into the cache, once. Without pip
# or a network the tests run without them.
# shellcheck shell=bash

# fetch_wheels NAME WHAT FOR-WHAT REQUIREMENT...: fetches the requirements into the cache's directory NAME, and what they require if
# wheels_dependencies is set.
fetch_wheels() {
  local name=$1 what=$2 for_what=$3 directory log
  shift 3
  directory=$(troupe_cache)/$name
  log=$(troupe_cache)/logs/$name.log
  [[ ! -e $directory/.complete ]] || return 0
  say "Fetching $what into $directory"
  mkdir -p "$(troupe_cache)/logs"
  rm -rf "$directory"
  if ! timeout "${wheels_timeout:-120}" python3 -m pip install --quiet --disable-pip-version-check "${wheels_dependencies:---no-deps}" --only-binary :all: --target "$directory" \
    "$@" >"$log" 2>&1; then
    say "Without $what: pip could not fetch it ($log). $for_what"
    return 1
  fi
  touch "$directory/.complete"
}

# LibTorch 2 and what its library for the CPU needs of CUDA's.
fetch_torch() {
  wheels_timeout=1200 fetch_wheels torch "LibTorch (0.6 GB)" "" 'torch>=2.6' nvidia-cuda-runtime nvidia-cuda-cupti
}

# Sets TROUPE_LIGHTGBM to LightGBM's library.
offer_lightgbm() {
  [[ -z ${TROUPE_LIGHTGBM:-} ]] || return 0
  fetch_wheels lightgbm "LightGBM's library (4 MB)" "The tests that train with it are left out." 'lightgbm>=4.3,<5' || return 0
  TROUPE_LIGHTGBM=$(troupe_cache)/lightgbm/lightgbm/lib/lib_lightgbm.so
  export TROUPE_LIGHTGBM
}

# Sets TROUPE_XGBOOST to XGBoost's library of a later version than Debian's.
offer_xgboost() {
  [[ -z ${TROUPE_XGBOOST:-} ]] || return 0
  fetch_wheels xgboost "a later XGBoost library (17 MB)" "The tests that train with it are left out." 'xgboost-cpu>=2.1,<4' || return 0
  TROUPE_XGBOOST=$(troupe_cache)/xgboost/xgboost/lib/libxgboost.so
  export TROUPE_XGBOOST
}

# Sets TROUPE_ONNXRUNTIME to ONNX Runtime's library.
offer_onnxruntime() {
  [[ -z ${TROUPE_ONNXRUNTIME:-} ]] || return 0
  fetch_wheels onnxruntime "ONNX Runtime's library (28 MB)" "The tests that predict with it are left out." 'onnxruntime>=1.14,<2' || return 0
  TROUPE_ONNXRUNTIME=$(printf '%s\n' "$(troupe_cache)"/onnxruntime/onnxruntime/capi/libonnxruntime.so.* | head -n 1)
  export TROUPE_ONNXRUNTIME
}

# Sets TROUPE_TENSORFLOW to TensorFlow's library. Its Python exports the models, so that all that it needs comes with it.
offer_tensorflow() {
  [[ -z ${TROUPE_TENSORFLOW:-} ]] || return 0
  wheels_dependencies=--upgrade wheels_timeout=900 fetch_wheels tensorflow "TensorFlow (1 GB)" "The tests that train with it are left out." \
    'tensorflow-cpu>=2.16,<3' || return 0
  TROUPE_TENSORFLOW=$(troupe_cache)/tensorflow/tensorflow/libtensorflow_cc.so.2
  export TROUPE_TENSORFLOW
}

# Sets TROUPE_MOTO to the directory of moto, whose server is an S3 of one's own.
offer_moto() {
  [[ -z ${TROUPE_MOTO:-} ]] || return 0
  ! python3 -c 'import moto.server' 2>/dev/null || return 0
  wheels_dependencies=--upgrade wheels_timeout=300 fetch_wheels moto "moto, a server of S3 (115 MB)" "The tests of mirrors in S3 are skipped." \
    'moto[s3]>=5,<6' flask flask-cors || return 0
  TROUPE_MOTO=$(troupe_cache)/moto
  export TROUPE_MOTO
}

# Sets TROUPE_MLFLOW to the directory of MLflow.
offer_mlflow() {
  [[ -z ${TROUPE_MLFLOW:-} ]] || return 0
  wheels_dependencies=--upgrade wheels_timeout=600 fetch_wheels mlflow "MLflow (700 MB)" "The test that logs a run to its server is skipped." \
    'mlflow>=2.9,<4' || return 0
  TROUPE_MLFLOW=$(troupe_cache)/mlflow
  export TROUPE_MLFLOW
}

# Sets TROUPE_TENSORBOARD to TensorBoard's reader of event files, which needs numpy besides.
offer_tensorboard() {
  [[ -z ${TROUPE_TENSORBOARD:-} ]] || return 0
  fetch_wheels tensorboard "TensorBoard's reader (6 MB)" "The test that reads event files with it is skipped." \
    'tensorboard>=2.14,<3' protobuf absl-py packaging || return 0
  TROUPE_TENSORBOARD=$(troupe_cache)/tensorboard
  export TROUPE_TENSORBOARD
}

# Makes numpy and safetensors available to python3; tests exchange files with them.
offer_python_peers() {
  python3 -c 'import numpy, safetensors' 2>/dev/null && return 0
  fetch_wheels python "numpy and safetensors (20 MB)" "The test that exchanges files with them is skipped." \
    'numpy>=1.24,<3' 'safetensors>=0.4,<1' || return 0
  PYTHONPATH=$(troupe_cache)/python${PYTHONPATH:+:$PYTHONPATH}
  export PYTHONPATH
}
