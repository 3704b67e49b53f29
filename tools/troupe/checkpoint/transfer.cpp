#include "commands.hpp"
#include "locate.hpp"
#include "text.hpp"

#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/files/digest.hpp>
#include <troupe/serialization/interchange/interchange.hpp>

#include <fmt/format.h>

#include <cstdio>
#include <utility>

namespace troupe::tool {

namespace fs = std::filesystem;

namespace {

/// The tensor to write to an NPY file.
expected<std::string> chosen_tensor(const serialization::checkpoint& source, const std::string& given) {
  const auto& tensors = source.content().tensors;
  if (!given.empty() && source.find(given))
    return given;
  if (given.empty() && tensors.size() == 1)
    return tensors[0].spec.name;
  constexpr std::size_t most = 20;
  auto names = std::string{};
  for (std::size_t i = 0; i < tensors.size() && i < most; ++i)
    names += (i == 0 ? "" : ", ") + tensors[i].spec.name;
  if (tensors.size() > most)
    names += ", ...";
  if (given.empty())
    return fail(errc::invalid_argument, fmt::format("an NPY file contains one tensor: choose it with --tensor ({}), or "
                                                    "export to a .safetensors file",
                                                    names));
  return fail(errc::not_found,
              fmt::format("{} has no tensor \"{}\"; it has {}", source.directory().string(), given, names));
}

expected<void> export_to(const serialization::checkpoint& source, const export_arguments& given) {
  auto existing = given.force ? serialization::existing_file::replace : serialization::existing_file::keep;
  auto progress = progress_line{"exporting", tensor_bytes(source.content())};
  auto count = [&](std::uint64_t bytes) { progress.add(bytes); };
  if (given.to.extension() == ".safetensors") {
    if (!given.tensor.empty())
      return fail(errc::invalid_argument, "--tensor is for .npy files: a .safetensors file contains all tensors");
    return serialization::export_safetensors(source, given.to, existing, count);
  }
  if (given.to.extension() != ".npy")
    return fail(
        errc::invalid_argument,
        fmt::format("cannot tell the format of {}: use a name that ends with .safetensors or .npy", given.to.string()));
  auto tensor = chosen_tensor(source, given.tensor);
  if (!tensor)
    return fail(std::move(tensor.error()));
  return serialization::export_npy(source, *tensor, given.to, existing, count);
}

std::uint64_t file_bytes(const fs::path& path) {
  auto code = std::error_code{};
  auto result = fs::file_size(path, code);
  return code ? 0 : result;
}

} // namespace

int export_file(const export_arguments& given) {
  auto path = locate_one(given.from, given.step);
  if (!path)
    return complain(path.error());
  auto source = serialization::checkpoint::open(*path);
  if (!source)
    return complain(source.error());
  if (auto done = export_to(*source, given); !done) {
    if (done.error().code == errc::already_exists)
      done.error().message += ", or replace it with --force";
    return complain(done.error());
  }
  if (given.output == output_format::json)
    print_json({{"checkpoint", source->directory().string()},
                {"file", given.to.string()},
                {"bytes", file_bytes(given.to)},
                {"step", source->content().step.value}});
  else
    std::printf("%s: step %llu as %s (%s)\n", source->directory().c_str(),
                static_cast<unsigned long long>(source->content().step.value), given.to.c_str(),
                bytes_text(file_bytes(given.to)).c_str());
  return exit_good;
}

int import_file(const import_arguments& given) {
  auto progress = progress_line{"importing", file_bytes(given.from)};
  auto options = serialization::import_options{
      .step = {given.step},
      .created = std::chrono::floor<std::chrono::milliseconds>(std::chrono::system_clock::now()),
      .tensor = given.tensor,
      .changed = given.changed ? serialization::changed_state::accept : serialization::changed_state::refuse,
      .progress = [&](std::uint64_t bytes) { progress.add(bytes); }};
  auto made = serialization::import_checkpoint(given.from, given.to, options);
  if (!made)
    return complain(made.error());
  auto sha256 = serialization::state_sha256(*made);
  if (!sha256)
    return complain(sha256.error());
  const auto& content = made->content();
  if (given.output == output_format::json) {
    print_json({{"checkpoint", made->directory().string()},
                {"run", content.run.value},
                {"step", content.step.value},
                {"tensors", content.tensors.size()},
                {"bytes", tensor_bytes(content)},
                {"state_sha256", *sha256}});
    return exit_good;
  }
  std::printf("%s: %zu tensors, %s, step %llu, state %.16s\n", made->directory().c_str(), content.tensors.size(),
              bytes_text(tensor_bytes(content)).c_str(), static_cast<unsigned long long>(content.step.value),
              sha256->c_str());
  std::printf("Start a run with it: trainer::load_checkpoint(\"%s\"), charlm --from %s. The program must track exactly "
              "these tensors, with the same names, dtypes and shapes.\n",
              made->directory().c_str(), made->directory().c_str());
  if (content.configuration_json.empty())
    std::printf("The file does not describe a run, so none can be resumed with it.\n");
  return exit_good;
}

} // namespace troupe::tool
