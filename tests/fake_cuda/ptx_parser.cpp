#include "ptx_program.hpp"

#include <algorithm>
#include <charconv>

// See README.md. nvcc writes one statement on each line; other forms are not supported.

namespace fake_cuda::ptx {

namespace {

std::string_view trimmed(std::string_view x) {
  const auto first = x.find_first_not_of(" \t\r");
  return first == std::string_view::npos ? std::string_view{}
                                         : x.substr(first, x.find_last_not_of(" \t\r") - first + 1);
}

/// Removes the text before `separator` from `rest`, together with the separator, and returns it.
std::string_view take(std::string_view& rest, char separator) {
  const auto end = rest.find(separator);
  const auto result = trimmed(rest.substr(0, end));
  rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
  return result;
}

/// Splits at commas outside braces.
std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> result;
  std::size_t first = 0;
  int depth = 0;
  for (std::size_t i = 0; i <= list.size(); ++i) {
    if (i < list.size() && (list[i] == '{' || list[i] == '}'))
      depth += list[i] == '{' ? 1 : -1;
    if (i == list.size() || (list[i] == ',' && depth == 0)) {
      if (const auto part = trimmed(list.substr(first, i - first)); !part.empty())
        result.push_back(part);
      first = i + 1;
    }
  }
  return result;
}

template <class T>
T number(std::string_view text, int base = 10) {
  T result{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), result, base);
  if (code != std::errc{} || end != text.data() + text.size())
    throw violation{"not a number: " + std::string{text}};
  return result;
}

std::size_t size_of_type(std::string_view name) {
  return name == ".pred" ? 4 : number<std::size_t>(name.substr(2)) / 8;
}

class parser {
 public:
  explicit parser(std::string_view text) : rest_(text) {}

  std::map<std::string, kernel, std::less<>> parse() {
    try {
      while (!rest_.empty())
        read(next_line());
    } catch (const violation& x) {
      throw violation{"PTX, line " + std::to_string(line_) + ": " + x.what()};
    }
    return std::move(kernels_);
  }

 private:
  std::string_view next_line() {
    ++line_;
    auto line = take(rest_, '\n');
    return trimmed(line.substr(0, line.find("//")));
  }

  void read(std::string_view line) {
    if (line.empty() || line == "(" || line == ")" || line == "{")
      return;
    if (line == "}")
      return end_kernel();
    if (line.back() == ':')
      return add_label(line.substr(0, line.size() - 1));
    if (line.front() == '.')
      return read_directive(line);
    if (line.back() != ';')
      throw violation{"not a statement on one line: " + std::string{line}};
    read_instruction(line.substr(0, line.size() - 1));
  }

  // -- directives

  void read_directive(std::string_view line) {
    const auto all = line;
    auto word = take(line, ' ');
    if (const auto tab = word.find('\t'); tab != std::string_view::npos) {
      line = trimmed(all.substr(tab + 1));
      word = all.substr(0, tab);
    }
    if (word == ".visible" || word == ".weak")
      return read_directive(trimmed(line));
    if (word == ".version" || word == ".target" || word == ".address_size" || word == ".pragma" || word == ".loc" ||
        word == ".file" || word == ".minnctapersm")
      return;
    if (word == ".entry")
      return begin_kernel(trimmed(line.substr(0, line.find('('))));
    if (word == ".maxntid")
      return set_most_threads(line);
    if (word == ".param")
      return add_parameter(line);
    if (word == ".reg")
      return add_registers(line);
    if (word == ".shared")
      return add_shared(line);
    throw violation{"not supported: " + std::string{all}};
  }

  void begin_kernel(std::string_view name) {
    now_ = {};
    now_.name = name;
    places_ = {{"%tid.x", thread_x}, {"%ntid.x", threads_x}, {"%ctaid.x", block_x}, {"%nctaid.x", blocks_x}};
    next_place_ = special_registers;
    constants_.clear();
    labels_.clear();
    jumps_.clear();
  }

  void set_most_threads(std::string_view line) {
    now_.most_threads = 1;
    for (const auto each : split(line))
      now_.most_threads *= number<unsigned>(each);
  }

  /// ".align 8 .b8 NAME[48]" or ".u64 NAME": returns the declared name and updates the end offset.
  std::string declare(std::string_view line, std::size_t& end, std::size_t& at, std::size_t& size_bytes) {
    line = trimmed(line.substr(0, line.find_last_not_of(",;") + 1));
    std::size_t alignment = 0;
    auto type = take(line, ' ');
    if (type == ".align") {
      alignment = number<std::size_t>(take(line, ' '));
      type = take(line, ' ');
    }
    size_bytes = size_of_type(type);
    alignment = std::max(alignment, size_bytes);
    const auto bracket = line.find('[');
    if (bracket != std::string_view::npos)
      size_bytes *= number<std::size_t>(line.substr(bracket + 1, line.find(']') - bracket - 1));
    at = (end + alignment - 1) / alignment * alignment;
    end = at + size_bytes;
    return std::string{trimmed(line.substr(0, bracket))};
  }

  void add_parameter(std::string_view line) {
    parameter made;
    const auto name = declare(line, now_.parameter_bytes, made.offset_bytes, made.size_bytes);
    now_.parameters.push_back(made);
    addresses_[name] = made.offset_bytes;
  }

  void add_shared(std::string_view line) {
    std::size_t at = 0;
    std::size_t size_bytes = 0;
    const auto name = declare(line, now_.shared_bytes, at, size_bytes);
    addresses_[name] = at;
  }

  /// ".b64 %rd<30>;" declares %rd0 to %rd29.
  void add_registers(std::string_view line) {
    const auto name = line.substr(line.find('%'), line.find('<') - line.find('%'));
    const auto count = number<int>(line.substr(line.find('<') + 1, line.find('>') - line.find('<') - 1));
    for (int i = 0; i < count; ++i)
      places_[std::string{name} + std::to_string(i)] = next_place_++;
  }

  // -- instructions

  void add_label(std::string_view name) { labels_[std::string{name}] = now_.code.size(); }

  void read_instruction(std::string_view line) {
    instruction made;
    made.line = line_;
    if (line.front() == '@') {
      line.remove_prefix(1);
      made.guard_is_negated = line.front() == '!';
      if (made.guard_is_negated)
        line.remove_prefix(1);
      const auto end = line.find_first_of(" \t");
      made.guard = place_of(line.substr(0, end));
      line = trimmed(line.substr(end));
    }
    const auto end = std::min(line.find_first_of(" \t"), line.size());
    const auto name = line.substr(0, end);
    const auto operands = split(line.substr(end));
    if (name == "ret" || name == "exit") {
      made.then = flow::end;
    } else if (name == "bra" || name == "bra.uni") {
      made.then = flow::branch;
      jumps_.emplace_back(now_.code.size(), std::string{operands.at(0)});
    } else if (name == "bar.sync" || name == "barrier.sync") {
      made.then = flow::barrier;
      now_.has_barriers = true;
    } else {
      set_operands(made, name, operands);
    }
    now_.code.push_back(made);
  }

  void set_operands(instruction& made, std::string_view name, const std::vector<std::string_view>& operands) {
    std::string plain{name};
    for (const auto* hint : {".v2", ".v4", ".nc", ".uni"})
      if (const auto at = plain.find(hint); at != std::string::npos)
        plain.erase(at, std::string_view{hint}.size());
    made.run = find_handler(plain);
    if (made.run == nullptr)
      throw violation{"the instruction is not supported: " + std::string{name}};
    if (operands.size() < 2 || operands.size() > 4)
      throw violation{"this number of operands is not supported: " + std::string{name}};
    const auto to = places_of(made, operands[0]);
    std::vector<int> from;
    for (std::size_t i = 1; i < operands.size(); ++i)
      std::ranges::copy(places_of(made, operands[i]), std::back_inserter(from));
    if (to.size() > made.to.size() || from.size() > made.from.size())
      throw violation{"this number of operands is not supported: " + std::string{name}};
    // A single register beside a vector contains the whole vector.
    made.to.fill(to.front());
    std::ranges::copy(to, made.to.begin());
    std::ranges::copy(from, made.from.begin());
  }

  std::vector<int> places_of(instruction& made, std::string_view operand) {
    if (operand.front() == '[')
      return {address(made, operand.substr(1, operand.size() - 2))};
    if (operand.front() != '{')
      return {place_of(operand)};
    std::vector<int> result;
    for (const auto each : split(operand.substr(1, operand.size() - 2)))
      result.push_back(place_of(each));
    made.width = static_cast<int>(result.size());
    return result;
  }

  /// "%rd1+8", or the name of a parameter or of shared memory.
  int address(instruction& made, std::string_view text) {
    const auto plus = text.find('+');
    if (plus != std::string_view::npos)
      made.offset_bytes = number<std::int64_t>(text.substr(plus + 1));
    return place_of(trimmed(text.substr(0, plus)));
  }

  int place_of(std::string_view operand) {
    if (const auto found = places_.find(operand); found != places_.end())
      return found->second;
    if (const auto found = addresses_.find(operand); found != addresses_.end())
      return constant(found->second);
    if (operand.starts_with("0f") || operand.starts_with("0d"))
      return constant(number<word>(operand.substr(2), 16));
    if (operand.starts_with("0x"))
      return constant(number<word>(operand.substr(2), 16));
    if (operand.front() == '-')
      return constant(static_cast<word>(number<std::int64_t>(operand)));
    return constant(number<word>(operand));
  }

  /// Constants are placed after the last register, once all registers are known.
  int constant(word x) {
    constants_.push_back(x);
    return -1 - static_cast<int>(constants_.size());
  }

  void end_kernel() {
    const auto resolve = [this](int& place) {
      if (place < -1)
        place = next_place_ - 2 - place;
    };
    for (auto& x : now_.code) {
      std::ranges::for_each(x.to, resolve);
      std::ranges::for_each(x.from, resolve);
    }
    for (const auto& [at, label] : jumps_) {
      const auto found = labels_.find(label);
      if (found == labels_.end())
        throw violation{"there is no label " + label};
      now_.code[at].target = found->second;
    }
    // A label may be at the end, and a kernel may lack a final ret.
    now_.code.push_back({.then = flow::end, .line = line_});
    now_.registers.assign(static_cast<std::size_t>(next_place_), 0);
    now_.registers.insert(now_.registers.end(), constants_.begin(), constants_.end());
    addresses_.clear();
    const auto name = now_.name;
    kernels_[name] = std::move(now_);
  }

  std::string_view rest_;
  int line_ = 0;
  std::map<std::string, kernel, std::less<>> kernels_;
  kernel now_;
  std::map<std::string, int, std::less<>> places_;
  int next_place_ = 0;
  std::map<std::string, std::size_t, std::less<>> addresses_;
  std::vector<word> constants_;
  std::map<std::string, std::size_t> labels_;
  std::vector<std::pair<std::size_t, std::string>> jumps_;
};

} // namespace

std::map<std::string, kernel, std::less<>> parse(std::string_view text) {
  return parser{text}.parse();
}

} // namespace fake_cuda::ptx
