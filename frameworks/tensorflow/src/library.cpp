#include "library.hpp"

#include <troupe/inference/optional_library.hpp>
#include <troupe/tensorflow.hpp>

namespace troupe::tensorflow {

namespace fs = std::filesystem;

namespace {

const inference::optional_library tensorflow_library{"TensorFlow", "libtensorflow_cc.so.2", "tensorflow-cpu",
                                                     "tensorflow", "TROUPE_TENSORFLOW"};

} // namespace

expected<fs::path> find_library(const fs::path& asked) {
  return inference::find_library(tensorflow_library, asked);
}

expected<library_ptr> library::open(const fs::path& path) {
  TROUPE_TRY(auto* handle, inference::open_library(tensorflow_library, path));
  auto result = std::make_shared<library>();
  auto& all = result->functions_;
  auto symbols = inference::library_symbols{handle};
#define TROUPE_LOAD(name) symbols.load(all.name, #name)
  TROUPE_LOAD(TF_Version);
  TROUPE_LOAD(TF_NewStatus);
  TROUPE_LOAD(TF_DeleteStatus);
  TROUPE_LOAD(TF_GetCode);
  TROUPE_LOAD(TF_Message);
  TROUPE_LOAD(TF_NewSessionOptions);
  TROUPE_LOAD(TF_DeleteSessionOptions);
  TROUPE_LOAD(TF_SetConfig);
  TROUPE_LOAD(TF_NewGraph);
  TROUPE_LOAD(TF_DeleteGraph);
  TROUPE_LOAD(TF_GraphOperationByName);
  TROUPE_LOAD(TF_LoadSessionFromSavedModel);
  TROUPE_LOAD(TF_DeleteSession);
  TROUPE_LOAD(TF_SessionRun);
  TROUPE_LOAD(TF_NewTensor);
  TROUPE_LOAD(TF_DeleteTensor);
  TROUPE_LOAD(TF_TensorType);
  TROUPE_LOAD(TF_NumDims);
  TROUPE_LOAD(TF_Dim);
  TROUPE_LOAD(TF_TensorByteSize);
  TROUPE_LOAD(TF_TensorData);
#undef TROUPE_LOAD
  TROUPE_TRY(symbols.check(path, "TensorFlow 2.16 or later"));
  return result;
}

std::optional<int> tensorflow_type(dtype type) noexcept {
  switch (type) {
  case dtype::f32:
    return 1;
  case dtype::f64:
    return 2;
  case dtype::i32:
    return 3;
  case dtype::u8:
    return 4;
  case dtype::i16:
    return 5;
  case dtype::i8:
    return 6;
  case dtype::i64:
    return 9;
  case dtype::boolean:
    return 10;
  case dtype::u16:
    return 17;
  case dtype::u32:
    return 22;
  case dtype::u64:
    return 23;
  case dtype::f16:
  case dtype::bf16:
    return std::nullopt;
  }
  return std::nullopt;
}

} // namespace troupe::tensorflow
