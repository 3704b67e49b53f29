#include "certs.hpp"
#include "checkpoint.hpp"
#include "checkpoint/commands.hpp"
#include "nodes.hpp"
#include "run.hpp"
#include "run/over_ssh.hpp"
#include "serve.hpp"
#include "submit.hpp"

#include <command_line.hpp>

#include <cstdio>
#include <exception>
#include <string_view>

int main(int argc, char** argv) {
  if (argc > 1 && std::string_view{argv[1]} == troupe::tool::serve_command)
    return troupe::tool::execute_serve(argv + 1);
  troupe::tool::keep_arguments(argc, argv);
  CLI::App app{"Manages the keys, nodes, checkpoints and runs of Troupe, and serves models.", "troupe"};
  app.set_version_flag("--version", "troupe " TROUPE_VERSION);
  troupe::tool::command chosen;
  troupe::tool::add_certs(app, chosen);
  troupe::tool::add_checkpoint(app, chosen);
  troupe::tool::add_run(app, chosen);
  troupe::tool::add_nodes(app, chosen);
  troupe::tool::add_submit(app, chosen);
  app.add_subcommand("rm")->group("")->prefix_command()->callback([] {
    throw CLI::ValidationError{"rm", "this command has gone, with jobs that nodes host: a run's directory is removed "
                                     "like any other, and the engine that has its job forgets it (docs/operations.md)"};
  });
  // For the list of commands.
  app.add_subcommand(troupe::tool::serve_command, "Serve the predictions of a model over HTTP");
  if (auto code = troupe::apps::parse_command_line(app, argc, argv))
    return *code;
  if (!chosen) {
    std::fputs(app.help().c_str(), stderr);
    return troupe::apps::exit_usage;
  }
  try {
    return chosen();
  } catch (const std::exception& x) {
    std::fprintf(stderr, "troupe: %s\n", x.what());
    return troupe::tool::exit_trouble;
  }
}
