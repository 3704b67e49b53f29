#pragma once

#include <troupe/error.hpp>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace troupe::runtime {

/// What a node answers to a question that it cannot carry out: {"code": N, "message": TEXT}.
[[nodiscard]] nlohmann::json describe_error(const error& why);

/// A text, or a number, in a question. They throw `std::invalid_argument`, which names the field.
[[nodiscard]] std::string text_in(const nlohmann::json& question, const char* key);
[[nodiscard]] std::uint64_t number_in(const nlohmann::json& question, const char* key);

/// What else the host does while a question is carried out.
enum class desk_priority : std::uint8_t {
  normal,
  /// Goes first, such as training.
  after_others,
};

/// Answers questions that wait for a disk or for another process, behind the thread that takes them. Such a question
/// has a "ticket", a text that the client makes up, and is asked again until the answer is another than
/// {"pending": true}. An answer that nobody fetches is forgotten after a minute. Thread-safe.
class ticket_desk {
 public:
  using json = nlohmann::json;
  /// Called in the desk's threads. What it throws is answered as `errc::invalid_argument`.
  using carry_out_function = std::function<expected<json>(const json& question)>;

  /// With so many threads. `about` completes "not a question about ...".
  ticket_desk(std::size_t threads, std::string about, carry_out_function carry_out,
              desk_priority priority = desk_priority::normal);
  ticket_desk(const ticket_desk&) = delete;
  ticket_desk& operator=(const ticket_desk&) = delete;
  ~ticket_desk();

  /// Never waits. Throws `std::invalid_argument` for a question without a ticket.
  [[nodiscard]] json answer(const json& question);

 private:
  using clock = std::chrono::steady_clock;

  struct order {
    std::string ticket;
    json question;
  };
  struct done {
    json answer;
    clock::time_point at;
  };

  void work(const std::stop_token& stop);
  [[nodiscard]] json carry_out(const json& question) const;

  const std::string about_;
  const carry_out_function carry_out_;
  const desk_priority priority_;
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::deque<order> orders_;
  /// Tickets whose orders wait or are carried out have no answer.
  std::map<std::string, std::optional<done>> tickets_;
  std::vector<std::jthread> threads_;
};

} // namespace troupe::runtime
