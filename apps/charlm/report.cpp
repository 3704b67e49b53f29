#include <charlm/report.hpp>

#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <sys/ioctl.h>
#include <unistd.h>

namespace charlm {

namespace {

std::size_t terminal_width() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40)
    return std::min<std::size_t>(size.ws_col, 120);
  return 80;
}

} // namespace

run_view::run_view(bool quiet) : quiet_(quiet), terminal_(::isatty(STDOUT_FILENO) != 0) {}

troupe::run_callbacks run_view::callbacks() {
  troupe::run_callbacks result;
  result.started = [this](const troupe::run_started& x) { started(x); };
  result.progress = [this](const troupe::run_progress& x) { progress(x); };
  result.notice = [this](const troupe::run_notice& x) {
    if (!quiet_ || x.warning)
      line((x.warning ? "warning: " : "") + x.text);
  };
  result.output = [this](std::uint32_t rank, const std::string& text) {
    line(fmt::format("[rank {}] {}", rank, text));
  };
  return result;
}

void run_view::started(const troupe::run_started& event) {
  if (quiet_)
    return;
  auto nodes = std::vector<std::string>{};
  for (const auto& worker : event.workers)
    if (std::ranges::find(nodes, worker.node) == nodes.end())
      nodes.push_back(worker.node);
  line(fmt::format("{} {} on {} {}", event.workers.size(), event.workers.size() == 1 ? "worker" : "workers",
                   nodes.size(), nodes.size() == 1 ? "node" : "nodes"));
}

void run_view::progress(const troupe::run_progress& event) {
  auto loss = event.metrics.find("loss");
  auto lock = std::lock_guard{mutex_};
  if (event.step == last_step_)
    return;
  last_step_ = event.step;
  if (loss != event.metrics.end())
    losses_.push_back({event.step, loss->second});
  if (quiet_)
    return;
  auto now = std::chrono::steady_clock::now();
  auto last = event.step >= event.steps;
  if (!terminal_ && !last && now - last_plain_line_ < std::chrono::seconds{2})
    return;
  last_plain_line_ = now;
  auto text =
      fmt::format("step {}/{}  loss {:.3f}  {:.0f} samples/s  {:.0f} s left", event.step, event.steps,
                  loss == event.metrics.end() ? 0.0 : loss->second, event.samples_per_second, event.seconds_left);
  if (terminal_) {
    std::printf("\r\033[K%s", text.c_str());
    line_open_ = true;
  } else {
    std::printf("%s\n", text.c_str());
  }
  std::fflush(stdout);
}

void run_view::clear_line() {
  if (line_open_)
    std::printf("\r\033[K");
  line_open_ = false;
}

void run_view::line(const std::string& text) {
  auto lock = std::lock_guard{mutex_};
  clear_line();
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", text.c_str());
}

void run_view::finish(const troupe::run_result&) {
  auto lock = std::lock_guard{mutex_};
  if (line_open_)
    std::printf("\n");
  line_open_ = false;
  std::fflush(stdout);
}

void run_view::show_losses(const troupe::run_result& result, const corpus& text) const {
  if (!losses_.empty())
    std::printf("\nTraining loss (nats per byte)\n%s",
                draw_curve(losses_, terminal_width(), 12, charset_of_environment()).c_str());
  auto held_out = result.metrics.find("held_out_loss");
  if (held_out != result.metrics.end())
    std::printf("\nHeld-out loss %.3f nats per byte (unigram entropy of the same text %.3f, bigram %.3f)\n",
                held_out->second, unigram_entropy(text), bigram_entropy(text));
  std::printf("%.1f s in total, first step after %.0f ms\n", result.seconds_total, result.seconds_to_first_step * 1000);
}

troupe::expected<model> load_model(const model_shape& shape, const std::filesystem::path& checkpoint) {
  auto stored = troupe::serialization::checkpoint::open(checkpoint);
  if (!stored)
    return troupe::fail(std::move(stored.error()));
  auto result = model{shape};
  for (auto& tensor : result.tensors())
    if (auto read = stored->read_tensor(tensor.name, std::as_writable_bytes(tensor.values)); !read)
      return troupe::fail(std::move(read.error()));
  return result;
}

} // namespace charlm
