#include "trainer/output_display.hpp"

#include "down.hpp"

#include <caf/all.hpp>
#include <fmt/format.h>

#include <functional>
#include <numeric>
#include <utility>

namespace troupe::actors {

namespace {

constexpr std::size_t most_waiting_bytes = 4'000'000;

/// The memory of a waiting line.
std::size_t size_of(const std::string& line) {
  return line.size() + sizeof(std::string);
}

} // namespace

output_display::output_display(caf::actor_system& system, show_function show) : system_(system) {
  actor_ = system_.spawn<caf::detached>(
      [show = std::move(show), waiting = waiting_](displaying_actor::pointer) -> displaying_actor::behavior_type {
        return {[show, waiting](const append_output& message) {
          for (const auto& line : message.output.lines) {
            show(message.rank, line);
            *waiting -= size_of(line);
          }
        }};
      });
}

output_display::~output_display() {
  // Reports the lines that were omitted last.
  show(append_output{});
  // An exit message would overtake the lines.
  auto self = caf::scoped_actor{system_};
  self->request(actor_, caf::infinite, append_output{}).receive([] {}, [](const caf::error&) {});
  end_and_await(system_, actor_);
}

void output_display::show(const append_output& message) {
  const auto size_of_all = [](const append_output& x) {
    return std::transform_reduce(x.output.lines.begin(), x.output.lines.end(), std::size_t{0}, std::plus{}, size_of);
  };
  if (*waiting_ + size_of_all(message) > most_waiting_bytes) {
    left_out_ += message.output.lines.size();
    return;
  }
  auto shown = message;
  if (const auto missing = std::exchange(left_out_, 0); missing > 0)
    shown.output.lines.insert(
        shown.output.lines.begin(),
        fmt::format("({} lines of workers are not shown, because nobody read them: logs/ has them)", missing));
  if (shown.output.lines.empty())
    return;
  *waiting_ += size_of_all(shown);
  caf::anon_send(actor_, std::move(shown));
}

} // namespace troupe::actors
