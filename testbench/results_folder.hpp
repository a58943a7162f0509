#pragma once
// The folder of --out: what a run leaves there is all of its files, or nothing of it, also when a
// signal ends it (docs/verification.md "Ends that nobody wants").
#include <filesystem>
#include <stdexcept>
#include <string>

namespace opd::tb {

/// Lets SIGTERM, SIGINT, SIGHUP and SIGPIPE remove what is staged before they end the program, with
/// the status of that signal.
void clear_stage_on_signals();

/// A file that is written under another name, beside its own, until it is whole.
class StagedFile {
 public:
  explicit StagedFile(std::filesystem::path target);
  ~StagedFile();
  StagedFile(const StagedFile&) = delete;
  StagedFile& operator=(const StagedFile&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Gives it its name. Throws std::runtime_error.
  void publish();

 private:
  std::filesystem::path target_, path_;
};

/// The results of one replay, which get their names together. One replay at a time has the folder.
class ResultsFolder {
 public:
  /// Locks the folder, which must be there. Throws std::runtime_error when another replay has it, or
  /// when nothing can be written there.
  explicit ResultsFolder(std::filesystem::path out);
  ~ResultsFolder();
  ResultsFolder(const ResultsFolder&) = delete;
  ResultsFolder& operator=(const ResultsFolder&) = delete;

  /// A folder inside, for files under their final names.
  const std::filesystem::path& stage();
  /// Gives every staged file its name; `index` is the one that tells of the others: an old one goes
  /// before any of them comes, and the new one comes last. Throws std::runtime_error, for what it
  /// can foresee (a target that is a folder, a device, a pipe) before anything has changed.
  void publish(const std::string& index);
  /// A text of an error, with the names that staged files would have had.
  [[nodiscard]] std::string in_place(std::string text) const;

 private:
  std::filesystem::path out_, stage_;
  int lock_ = -1;
};

}  // namespace opd::tb
