#pragma once

#include <troupe/error.hpp>

#include <filesystem>
#include <string>
#include <vector>

/// A job on another host, over ssh.
namespace troupe::tool {

/// A file that the job needs there.
struct sent_file {
  std::filesystem::path here;
  /// Relative to the job's directory there.
  std::string there;
  bool is_program = false;
};

/// The job's directory there, relative to the user's home.
[[nodiscard]] std::string remote_directory(const std::string& job);

/// The files of a job: its program, if that is a path here, and what `--with` names. Fails for files that are not here,
/// and for those that are not below this directory: their names there would be others.
[[nodiscard]] expected<std::vector<sent_file>> files_to_send(const std::string& program,
                                                             const std::vector<std::string>& with);

/// The files whose content there is another, from the output of sha256sum there. Fails for a file that cannot be read.
[[nodiscard]] expected<std::vector<sent_file>> files_that_differ(const std::vector<sent_file>& files,
                                                                 const std::string& listing);

/// Copies what differs into the job's directory there, and says so on standard error. A file is replaced as a whole.
[[nodiscard]] expected<void> send_files(const std::string& host, const std::string& job,
                                        const std::vector<sent_file>& files);

} // namespace troupe::tool
