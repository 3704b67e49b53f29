#pragma once

#include <troupe/error.hpp>
#include <troupe/messages/type_ids.hpp>

#include <caf/error.hpp>
#include <caf/message.hpp>
#include <caf/timespan.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <type_traits>
#include <utility>

namespace troupe::actors {

/// Whether the receiver of a request has refused it. After any other error it is unknown whether the receiver got it.
[[nodiscard]] inline bool is_refusal(const caf::error& reason) {
  return reason.context().match_elements<error>();
}

/// Requests to an actor in another process, which gets another handle after each reconnect. `connect` then repeats all
/// unanswered requests in order. Receivers must deduplicate. A repeated request breaks the receiver's earlier promise,
/// so an error from an earlier connection is ignored; so is an error that `IsAnswer` rejects. Used in the thread of the
/// sending actor, `Self`; may be destroyed while requests are pending.
template <class Self, class Handle, bool (*IsAnswer)(const caf::error&) = is_refusal>
class outbox {
 public:
  /// The receiver has this handle from now on.
  void connect(Handle whom) {
    state_->whom = std::move(whom);
    ++state_->connection;
    // Sending may end a request at once.
    const auto all = state_->unanswered;
    for (const auto& [number, send] : all)
      send();
  }

  /// The receiver has lost its right to the messages: what it has not answered is for the one that is connected next,
  /// and its answers count no more.
  void disown() {
    state_->whom = Handle{};
    ++state_->connection;
    ++state_->owner;
  }

  [[nodiscard]] const Handle& receiver() const noexcept { return state_->whom; }

  /// Calls one of the two functions, with the result or an error, when there is an answer. Nothing is sent before the
  /// first `connect`.
  template <class Result, class OnResult, class OnError, class... Message>
  void request(Self& self, const OnResult& on_result, const OnError& on_error, Message... message) {
    const auto number = ++state_->last;
    auto send = [self = &self, number, weak = std::weak_ptr{state_}, on_result = on_result, on_error = on_error,
                 ... message = std::move(message)] {
      const auto state = weak.lock();
      if (!state || !state->whom)
        return;
      // A repeated request may be answered twice.
      auto is_first = [weak, number, owner = state->owner] {
        const auto state = weak.lock();
        return state && state->owner == owner && state->unanswered.erase(number) > 0;
      };
      auto fail = [is_first, on_error, weak, connection = state->connection](const caf::error& reason) mutable {
        const auto state = weak.lock();
        if (state && state->connection == connection && IsAnswer(reason) && is_first())
          on_error(reason);
      };
      auto waiting = self->request(state->whom, caf::infinite, message...);
      if constexpr (std::is_void_v<Result>)
        std::move(waiting).then(
            [is_first, on_result]() mutable {
              if (is_first())
                on_result();
            },
            std::move(fail));
      else
        std::move(waiting).then(
            [is_first, on_result](Result& result) mutable {
              if (is_first())
                on_result(result);
            },
            std::move(fail));
    };
    state_->unanswered.emplace(number, send);
    send();
  }

  /// Sends a request whose answer says no more than that it was received.
  template <class... Message>
  void send(Self& self, Message... message) {
    request<void>(
        self, [] {}, [](const caf::error&) {}, std::move(message)...);
  }

 private:
  struct content {
    Handle whom;
    /// Counts the handles.
    std::uint64_t connection = 0;
    /// Counts those to whom the messages have belonged.
    std::uint64_t owner = 0;
    std::uint64_t last = 0;
    /// The functions that send each request, by number.
    std::map<std::uint64_t, std::function<void()>> unanswered;
  };

  std::shared_ptr<content> state_ = std::make_shared<content>();
};

} // namespace troupe::actors
