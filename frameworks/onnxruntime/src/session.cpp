#include "session.hpp"

#include <utility>

namespace troupe::onnxruntime {

namespace {

constexpr int log_errors = 3;
constexpr int device_allocator = 0;
constexpr int default_memory = 0;

/// The result of a function that makes an object through its last argument.
template <class Object, class Make>
Object* made_by(const library& from, Make&& make) {
  Object* result = nullptr;
  from.check(make(&result));
  return result;
}

} // namespace

session::session(library from, std::span<const std::byte> model)
    : library_(from),
      environment_(made_by<ort_environment>(
                       from, [&](auto out) { return from.functions().create_environment(log_errors, "troupe", out); }),
                   from.functions().release_environment),
      memory_(made_by<ort_memory_info>(from,
                                       [&](auto out) {
                                         return from.functions().create_cpu_memory_info(device_allocator,
                                                                                        default_memory, out);
                                       }),
              from.functions().release_memory_info),
      session_(nullptr, from.functions().release_session) {
  const auto& call = library_.functions();
  auto options = owned<ort_session_options>{made_by<ort_session_options>(library_, call.create_session_options),
                                            call.release_session_options};
  // Sums depend on the number of threads.
  library_.check(call.set_threads_of_operator(options.get(), 1));
  library_.check(call.set_threads_of_graph(options.get(), 1));
  library_.check(call.set_log_severity(options.get(), log_errors));
  session_.reset(made_by<ort_session>(library_, [&](auto out) {
    return call.create_session_from_array(environment_.get(), model.data(), model.size(), options.get(), out);
  }));
  auto* allocator = made_by<ort_allocator>(library_, call.get_default_allocator);
  std::size_t count = 0;
  library_.check(call.get_input_count(session_.get(), &count));
  for (std::size_t i = 0; i < count; ++i)
    inputs_.push_back(describe(
        made_by<ort_type_info>(library_, [&](auto out) { return call.get_input_type(session_.get(), i, out); }),
        made_by<char>(library_, [&](auto out) { return call.get_input_name(session_.get(), i, allocator, out); })));
  library_.check(call.get_output_count(session_.get(), &count));
  for (std::size_t i = 0; i < count; ++i)
    outputs_.push_back(describe(
        made_by<ort_type_info>(library_, [&](auto out) { return call.get_output_type(session_.get(), i, out); }),
        made_by<char>(library_, [&](auto out) { return call.get_output_name(session_.get(), i, allocator, out); })));
}

model_tensor session::describe(ort_type_info* type, char* name) const {
  const auto& call = library_.functions();
  auto kept = owned<ort_type_info>{type, call.release_type_info};
  model_tensor result;
  result.name = name;
  auto* allocator = made_by<ort_allocator>(library_, call.get_default_allocator);
  library_.check(call.free_of_allocator(allocator, name));
  int kind = 0;
  library_.check(call.get_kind_of_type(type, &kind));
  if (kind != kind_tensor)
    return result;
  const ort_tensor_info* info = nullptr;
  library_.check(call.get_tensor_info_of_type(type, &info));
  library_.check(call.get_element_type(info, &result.type));
  result.shape = dimensions_of(info);
  return result;
}

std::vector<std::int64_t> session::dimensions_of(const ort_tensor_info* info) const {
  std::size_t count = 0;
  library_.check(library_.functions().get_dimension_count(info, &count));
  std::vector<std::int64_t> result(count);
  library_.check(library_.functions().get_dimensions(info, result.data(), count));
  return result;
}

std::vector<output_value> session::run(std::span<const input_value> values, std::span<const std::size_t> wanted) {
  const auto& call = library_.functions();
  std::vector<output_value> tensors;
  std::vector<const ort_value*> inputs;
  std::vector<const char*> input_names;
  for (std::size_t i = 0; i < values.size(); ++i) {
    // The library only reads the inputs.
    tensors.emplace_back(library_, made_by<ort_value>(library_, [&](auto out) {
                           return call.create_tensor(memory_.get(), const_cast<std::byte*>(values[i].bytes.data()),
                                                     values[i].bytes.size(), values[i].shape.data(),
                                                     values[i].shape.size(), inputs_[i].type, out);
                         }));
    inputs.push_back(tensors.back().get());
    input_names.push_back(inputs_[i].name.c_str());
  }
  std::vector<const char*> output_names;
  for (auto i : wanted)
    output_names.push_back(outputs_[i].name.c_str());
  std::vector<ort_value*> found(wanted.size());
  library_.check(call.run(session_.get(), nullptr, input_names.data(), inputs.data(), inputs.size(),
                          output_names.data(), output_names.size(), found.data()));
  std::vector<output_value> result;
  for (auto* each : found)
    result.emplace_back(library_, each);
  return result;
}

std::vector<std::int64_t> session::shape_of(const output_value& value) const {
  const auto& call = library_.functions();
  auto info = owned<ort_tensor_info>{
      made_by<ort_tensor_info>(library_, [&](auto out) { return call.get_tensor_info(value.get(), out); }),
      call.release_tensor_info};
  return dimensions_of(info.get());
}

const void* session::data_of(const output_value& value) const {
  return made_by<void>(library_, [&](auto out) { return library_.functions().get_tensor_data(value.get(), out); });
}

} // namespace troupe::onnxruntime
