#include <troupe/runtime/run_access.hpp>

#include <troupe/actors/run_lock.hpp>

#include <nlohmann/json.hpp>
#include <system_error>

namespace troupe::runtime {

std::string run_access::name() const {
  auto code = std::error_code{};
  const auto whole = std::filesystem::weakly_canonical(directory_, code);
  const auto& path = code ? directory_ : whole;
  return path.filename().empty() ? path.parent_path().filename().string() : path.filename().string();
}

std::variant<control_client, absent_driver> run_access::find_driver() const {
  return runtime::find_driver(directory_);
}

nlohmann::ordered_json run_access::stored_status(absence why) const {
  return runtime::stored_status(directory_, why);
}

bool run_access::has_driver() const {
  const auto holder = actors::read_lock_holder(directory_);
  return holder && actors::life_of(*holder, directory_) != actors::holder_life::is_gone;
}

} // namespace troupe::runtime
