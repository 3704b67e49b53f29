#include "checkpoint.hpp"

#include "checkpoint/commands.hpp"

#include <command_line.hpp>

#include <cstdio>
#include <memory>
#include <string>

namespace troupe::tool {

namespace {

constexpr auto where_help = "A run's directory, its checkpoints directory, or one checkpoint's";
constexpr auto one_help = "A checkpoint's directory; of a run's directory the newest in it";

constexpr auto overview =
    R"(A run keeps its checkpoints in STORAGE/RUN/checkpoints/step-00000100 and so on. None of these commands
needs a cluster or a running program.

Examples:
  troupe checkpoint ls runs/charlm                       what there is, and whether it looks whole
  troupe checkpoint show runs/charlm --step 500          what is in it
  troupe checkpoint verify runs/charlm                   reads every byte of all of them
  troupe checkpoint diff runs/a runs/b                   the newest of both, bit by bit
  troupe checkpoint export runs/charlm model.safetensors for PyTorch, JAX, ...
  troupe checkpoint import model.safetensors imported    and back: charlm --from imported
  troupe checkpoint rm runs/charlm --keep 2              all but the newest two

Exit codes: 0 all is well, 1 a damage or difference was found, 2 bad usage, not found, or it could not be done.)";

/// Adds a subcommand that runs `run` on its arguments, and the option that all of them have.
template <class Arguments>
std::pair<CLI::App*, std::shared_ptr<Arguments>> add_command(CLI::App& parent, command& chosen, const char* name,
                                                             const char* description, int (*run)(const Arguments&)) {
  // Lives as long as the options that write to it.
  auto given = std::make_shared<Arguments>();
  auto* added = parent.add_subcommand(name, description);
  added->add_flag_callback(
      "--json", [given] { given->output = output_format::json; }, "Print one JSON document, for scripts");
  added->callback([given, run, &chosen] { chosen = [given, run] { return run(*given); }; });
  return {added, given};
}

void add_readers(CLI::App& parent, command& chosen) {
  auto [ls, listed] = add_command(parent, chosen, "ls", "Lists checkpoints: a quick look at manifests and sizes", list);
  ls->add_option("PATH", listed->path, where_help)->required();

  auto [shows, shown] = add_command(parent, chosen, "show", "Shows what a checkpoint holds", show);
  shows->add_option("PATH", shown->path, one_help)->required();
  shows->add_option("--step", shown->step, "Not the newest in PATH, but the one of this step");
  shows->add_flag("--sha256", shown->sha256, "Also the state's SHA-256, as result.json tells it: reads everything");

  auto [verifies, verified] =
      add_command(parent, chosen, "verify", "Reads everything, and names what is damaged", verify);
  verifies->add_option("PATH", verified->path, where_help)->required();
  verifies->add_option("--step", verified->step, "Only the one of this step");

  auto [diffs, compared] = add_command(parent, chosen, "diff", "Compares two checkpoints, of one run or two", diff);
  diffs->add_option("A", compared->left, one_help)->required();
  diffs->add_option("B", compared->right, one_help)->required();
  diffs->add_flag("--all", compared->all,
                  "Run, step, metrics, configuration and so on count as well; without, only the state does: tensors "
                  "and values");
}

void add_writers(CLI::App& parent, command& chosen) {
  auto [exports, exported] =
      add_command(parent, chosen, "export", "Writes a checkpoint's tensors into a file that others read", export_file);
  exports->add_option("FROM", exported->from, one_help)->required();
  exports->add_option("TO", exported->to, "NAME.safetensors for all tensors, NAME.npy for one")->required();
  exports->add_option("--step", exported->step, "Not the newest in FROM, but the one of this step");
  exports->add_option("--tensor", exported->tensor, "The tensor that goes into a .npy file");
  exports->add_flag("--force", exported->force, "Replace TO if it exists");

  auto [imports, imported] =
      add_command(parent, chosen, "import", "Makes a checkpoint from a safetensors or NPY file", import_file);
  imports->add_option("FROM", imported->from, "The file; of which format it is, it says itself")->required();
  imports->add_option("TO", imported->to, "The checkpoint's directory, to be made")->required();
  imports->add_option("--step", imported->step, "Its step, if the file was not exported from a checkpoint")
      ->capture_default_str();
  imports->add_option("--tensor", imported->tensor, "The tensor's name, for an NPY file (default: the file's name)");
  imports->add_flag("--changed", imported->changed, "Accept an exported file whose tensors were changed since");

  auto [removes, removed] = add_command(parent, chosen, "rm",
                                        "Removes a checkpoint, or the oldest; not the last good one, and none of a "
                                        "run that is under way",
                                        remove);
  removes->add_option("PATH", removed->path, where_help)->required();
  auto* step = removes->add_option("--step", removed->step, "The one of this step in PATH");
  auto* keep = removes->add_option("--keep", removed->keep, "All but the newest so many")
                   ->check(troupe::apps::positive_number());
  auto* force = removes->add_flag("--force", removed->force, "Even if it is the last good one");
  keep->excludes(step);
  keep->excludes(force);
}

} // namespace

void add_checkpoint(CLI::App& app, command& chosen) {
  auto* checkpoint =
      app.add_subcommand("checkpoint", "Looks at checkpoints, compares, exports, imports and removes them");
  checkpoint->require_subcommand(0, 1);
  checkpoint->callback([checkpoint, &chosen] {
    if (checkpoint->get_subcommands().empty())
      chosen = [checkpoint] {
        std::fputs(checkpoint->help().c_str(), stderr);
        return exit_trouble;
      };
  });
  add_readers(*checkpoint, chosen);
  add_writers(*checkpoint, chosen);
  // Last, or each of them would have it as well.
  checkpoint->footer(overview);
}

} // namespace troupe::tool
