#include "checkpoint.hpp"

#include "checkpoint/commands.hpp"
#include "checkpoint/mirror.hpp"
#include "run.hpp"

#include <command_line.hpp>

#include <troupe/mirror_place.hpp>

#include <cstdio>
#include <memory>

namespace troupe::tool {

namespace {

constexpr auto where_help = "A run's directory, its checkpoints directory, or the directory of a checkpoint";
constexpr auto list_help = "A run's directory or another of checkpoints; or a run at a mirror, rclone:REMOTE:PATH/RUN";
constexpr auto one_help = "A checkpoint's directory, or a run's directory, which means its newest checkpoint";

constexpr auto overview =
    R"(A run keeps its checkpoints in STORAGE/RUN/checkpoints/step-00000100 and so on. All commands but now need neither a
cluster nor a running program.

Examples:
  troupe checkpoint ls runs/latest                       list checkpoints, with a quick check
  troupe checkpoint show runs/latest --step 500          show the contents of one
  troupe checkpoint verify runs/latest                   read every byte of all of them
  troupe checkpoint diff runs/a runs/b                   compare the newest of both, bit by bit
  troupe checkpoint export runs/latest model.safetensors export for PyTorch, JAX, ...
  troupe checkpoint import model.safetensors imported    import; then charlm --from imported
  troupe checkpoint fetch rclone:s3:bucket/runs/a here   copy the newest of a mirror into a directory
  troupe checkpoint rm runs/latest --keep 2              remove all but the newest two
  troupe checkpoint now runs/latest                      have a running run take one

Exit codes: 0 success, 1 damage or a difference was found, 2 wrong usage, nothing found, or the command failed.)";

/// Adds a subcommand that calls `run` with its arguments, and the option that all subcommands have.
template <class Arguments>
std::pair<CLI::App*, std::shared_ptr<Arguments>> add_command(CLI::App& parent, command& chosen, const char* name,
                                                             const char* description, int (*run)(const Arguments&)) {
  // Shared with the callbacks, because the options write to it.
  auto given = std::make_shared<Arguments>();
  auto* added = parent.add_subcommand(name, description);
  added->add_flag_callback(
      "--json", [given] { given->output = output_format::json; }, "Print one JSON document, for scripts");
  added->callback([given, run, &chosen] { chosen = [given, run] { return run(*given); }; });
  return {added, given};
}

void add_rclone(CLI::App& command, std::string& rclone) {
  command.add_option("--rclone", rclone, "The program rclone")->capture_default_str();
}

struct list_options : list_arguments {
  std::string rclone = "rclone";
};

int list_anywhere(const list_options& given) {
  return is_remote_place(given.path.string()) ? list_mirror(given, given.rclone) : list(given);
}

void add_readers(CLI::App& parent, command& chosen) {
  auto [ls, listed] =
      add_command(parent, chosen, "ls", "List checkpoints; checks manifests and file sizes", list_anywhere);
  ls->add_option("PATH", listed->path, list_help)->required();
  add_rclone(*ls, listed->rclone);

  auto [shows, shown] = add_command(parent, chosen, "show", "Show the contents of a checkpoint", show);
  shows->add_option("PATH", shown->path, one_help)->required();
  shows->add_option("--step", shown->step, "The checkpoint of this step in PATH instead of the newest");
  shows->add_flag("--sha256", shown->sha256, "Also compute the state's SHA-256, as in result.json; reads everything");

  auto [verifies, verified] = add_command(parent, chosen, "verify", "Read everything and report damage", verify);
  verifies->add_option("PATH", verified->path, where_help)->required();
  verifies->add_option("--step", verified->step, "Only the checkpoint of this step");

  auto [diffs, compared] =
      add_command(parent, chosen, "diff", "Compare two checkpoints of the same run or of different runs", diff);
  diffs->add_option("A", compared->left, one_help)->required();
  diffs->add_option("B", compared->right, one_help)->required();
  diffs->add_flag("--all", compared->all,
                  "Also compare run, step, metrics, configuration and so on, not only the state (tensors and values)");
}

void add_writers(CLI::App& parent, command& chosen) {
  auto [exports, exported] =
      add_command(parent, chosen, "export", "Write a checkpoint's tensors to a safetensors or NPY file", export_file);
  exports->add_option("FROM", exported->from, one_help)->required();
  exports->add_option("TO", exported->to, "NAME.safetensors for all tensors, NAME.npy for one")->required();
  exports->add_option("--step", exported->step, "The checkpoint of this step in FROM instead of the newest");
  exports->add_option("--tensor", exported->tensor, "The tensor to write to a .npy file");
  exports->add_flag("--force", exported->force, "Replace TO if it exists");

  auto [fetches, fetched] = add_command(parent, chosen, "fetch",
                                        "Copy a checkpoint from a run's mirror into a directory; verifies it", fetch);
  fetches
      ->add_option(
          "FROM", fetched->from,
          "A run's place at a mirror, which means its newest checkpoint, or that of a checkpoint: a directory, "
          "rclone:REMOTE:PATH/RUN")
      ->required();
  fetches->add_option("TO", fetched->to, "The directory that gets step-...; it need not exist")->required();
  fetches->add_option("--step", fetched->step, "The checkpoint of this step in FROM instead of the newest");
  add_rclone(*fetches, fetched->rclone);

  auto [imports, imported] =
      add_command(parent, chosen, "import", "Make a checkpoint from a safetensors or NPY file", import_file);
  imports->add_option("FROM", imported->from, "The file; its content determines the format")->required();
  imports->add_option("TO", imported->to, "The checkpoint's directory, which must not exist")->required();
  imports->add_option("--step", imported->step, "Its step, if the file was not exported from a checkpoint")
      ->capture_default_str();
  imports->add_option("--tensor", imported->tensor, "The tensor's name, for an NPY file (default: the file's name)");
  imports->add_flag("--changed", imported->changed, "Accept an exported file whose tensors have been changed");

  auto [removes, removed] = add_command(parent, chosen, "rm",
                                        "Remove one checkpoint or the oldest ones; keeps the last good one, and all of "
                                        "a running run",
                                        remove);
  removes->add_option("PATH", removed->path, where_help)->required();
  auto* step = removes->add_option("--step", removed->step, "The checkpoint of this step in PATH");
  auto* keep = removes->add_option("--keep", removed->keep, "Remove all but this many of the newest")
                   ->check(troupe::apps::positive_number());
  auto* force = removes->add_flag("--force", removed->force, "Remove it even if it is the last good one");
  keep->excludes(step);
  keep->excludes(force);
}

} // namespace

void add_checkpoint(CLI::App& app, command& chosen) {
  auto* checkpoint = app.add_subcommand("checkpoint", "Inspect, compare, export, import, fetch and remove checkpoints");
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
  add_save_now(*checkpoint, chosen);
  // Last, because subcommands inherit the footer.
  checkpoint->footer(overview);
}

} // namespace troupe::tool
