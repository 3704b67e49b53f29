#pragma once

#include <predict/models.hpp>

#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <filesystem>
#include <functional>
#include <string>

/// The command line of the programs that serve predictions.
namespace serve {

/// What a program can serve.
struct program_kind {
  const char* name;
  const char* description;
  /// Loads a model. Throws `exception`. Called from several threads.
  std::function<predict::loaded_model(const troupe::serialization::checkpoint& source,
                                      const predict::model_files& files)>
      load;
  /// Whether it serves models of a kind.
  std::function<bool(predict::model_kind kind)> serves;
  /// The name of a program beside this one that serves all kinds; empty for this one.
  std::string wider_program;
};

/// Parses the command line and serves until SIGINT or SIGTERM. Returns the exit code, or executes the other program.
[[nodiscard]] int run(const program_kind& program, int argc, char** argv);

} // namespace serve
