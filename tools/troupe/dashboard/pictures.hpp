#pragma once

#include <troupe/runtime/run_story.hpp>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

/// Curves and timelines as text and SVG. Pure.
namespace troupe::tool {

/// A curve of braille dots with its axes, a line each, of `width` by `height` characters without the axes.
[[nodiscard]] std::vector<std::string> draw_curve(const runtime::named_curve& curve, std::size_t width,
                                                  std::size_t height);

/// Lines for processes, pauses, failures and checkpoints over `width` characters of time; empty without events.
/// `events` are those of a story.
[[nodiscard]] std::vector<std::string> draw_timeline(const nlohmann::ordered_json& events, std::size_t width);

/// One SVG document with a picture for each curve, and the timeline.
[[nodiscard]] std::string to_svg(const std::string& title, const std::vector<runtime::named_curve>& curves,
                                 const nlohmann::ordered_json& events);

} // namespace troupe::tool
