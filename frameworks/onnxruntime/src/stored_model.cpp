#include "stored_model.hpp"

#include <troupe/onnxruntime.hpp>
#include <troupe/serialization/files/digest.hpp>
#include <troupe/serialization/interchange/interchange.hpp>
#include <troupe/serialization/interchange/npy.hpp>

#include <cerrno>
#include <cstring>
#include <fmt/format.h>
#include <fstream>
#include <system_error>
#include <unistd.h>

namespace troupe::onnxruntime {

namespace fs = std::filesystem;

namespace {

expected<std::vector<std::byte>> read_whole_file(const fs::path& path) {
  std::error_code why;
  if (!fs::exists(path, why))
    return fail(errc::not_found, fmt::format("{} does not exist: it should be an ONNX model", path.string()));
  const auto size = fs::is_regular_file(path, why) ? fs::file_size(path, why) : 0;
  if (why || size == 0)
    return fail(errc::invalid_argument, fmt::format("{} is no ONNX model: it is empty, or no file", path.string()));
  std::vector<std::byte> result(size);
  auto in = std::ifstream{path, std::ios::binary};
  if (!in.read(reinterpret_cast<char*>(result.data()), static_cast<std::streamsize>(size)))
    return fail(errc::io_error, fmt::format("{} cannot be read: {}", path.string(), std::strerror(errno)));
  return result;
}

} // namespace

expected<std::vector<std::byte>> read_stored_model(const serialization::checkpoint& source) {
  const auto index = source.find(model_tensor_name);
  if (!index)
    return fail(errc::not_found, fmt::format("{} has no ONNX model: it has no tensor '{}'", source.directory().string(),
                                             model_tensor_name));
  std::vector<std::byte> result(source.content().tensors[*index].spec.size_bytes());
  TROUPE_TRY(source.read_tensor(*index, result));
  return result;
}

expected<fs::path> store_model(const fs::path& model, const fs::path& directory) {
  TROUPE_TRY(auto bytes, read_whole_file(model));
  auto target = directory / fmt::format("{}-{:016x}", model.stem().string(), serialization::xxh3(bytes));
  if (fs::exists(target))
    return target;
  std::error_code why;
  fs::create_directories(directory, why);
  // The import reads files.
  auto array = target;
  array += fmt::format(".{}.npy", ::getpid());
  const tensor_view tensor{{model_tensor_name, dtype::u8, {bytes.size()}}, bytes.data()};
  TROUPE_TRY(serialization::write_npy(array, tensor, serialization::existing_file::replace));
  serialization::import_options options;
  options.tensor = model_tensor_name;
  auto made = serialization::import_checkpoint(array, target, options);
  fs::remove(array, why);
  // Another process may have been faster.
  if (!made && made.error().code != errc::already_exists)
    return fail(made.error());
  return target;
}

} // namespace troupe::onnxruntime
