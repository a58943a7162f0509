#include "results_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <vector>

namespace opd::tb {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kStagePrefix = ".opd-replay-";
constexpr auto kReplace = fs::copy_options::overwrite_existing;  // behind a link to another disk
constexpr std::array<int, 4> kSignals = {SIGTERM, SIGINT, SIGHUP, SIGPIPE};

// What a signal handler may read: no allocation, no lock.
std::array<char, 4096> staged_path{};
std::atomic<bool> is_staged{false};      // staged_path is valid
std::atomic<bool> is_publishing{false};  // a signal waits until the names are given
volatile std::sig_atomic_t waiting_signal = 0;

void set_staged(const fs::path& path) {
  const std::string text = fs::absolute(path).string();
  if (text.size() >= staged_path.size())
    throw std::runtime_error(
        fmt::format("{}: the path is too long; give a shorter --out", path.string()));
  std::copy_n(text.c_str(), text.size() + 1, staged_path.begin());
  is_staged = true;
}

/// Unlinks the files of a folder. Async-signal-safe: readdir() would allocate.
void empty_folder(const char* path) {
  const int folder = ::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  alignas(std::uint64_t) std::array<char, 8192> entries;
  for (long size = 0;
       (size = ::syscall(SYS_getdents64, folder, entries.data(), entries.size())) > 0;) {
    // struct linux_dirent64: 8 bytes of inode, 8 of offset, 2 of length, 1 of type, the name.
    for (long at = 0; at < size;) {
      const char* const entry = entries.data() + at;
      std::uint16_t length = 0;
      std::memcpy(&length, entry + 16, sizeof length);
      ::unlinkat(folder, entry + 19, 0);
      at += length;
    }
  }
  ::close(folder);
}

void remove_staged() {
  if (!is_staged.exchange(false)) return;
  if (::unlink(staged_path.data()) == 0) return;
  empty_folder(staged_path.data());
  ::rmdir(staged_path.data());
}

void on_signal(int number) {
  if (is_publishing) {
    waiting_signal = number;
    return;
  }
  remove_staged();
  std::signal(number, SIG_DFL);
  ::raise(number);
}

/// Signals wait while this lives.
class Publishing {
 public:
  Publishing() { is_publishing = true; }
  ~Publishing() {
    is_publishing = false;
    if (waiting_signal != 0) on_signal(waiting_signal);
  }
  Publishing(const Publishing&) = delete;
  Publishing& operator=(const Publishing&) = delete;
};

[[noreturn]] void fail(const fs::path& file, std::string_view wrong, std::string_view remedy) {
  throw std::runtime_error(fmt::format("{}: {}; {}", file.string(), wrong, remedy));
}

std::string system_text() { return std::generic_category().message(errno); }

/// The file that a name in the folder stands for, behind its links. Throws where a file cannot take
/// its place.
fs::path target_of(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode))
    fail(path, S_ISDIR(status.st_mode) ? "is a folder" : "is not a regular file",
         "move it away, or give another --out");
  std::error_code error;
  const fs::path target = fs::weakly_canonical(path, error);
  if (error) fail(path, "cannot be written (" + error.message() + ")", "give another --out");
  return target;
}

}  // namespace

void clear_stage_on_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  for (const int number : kSignals) sigaddset(&action.sa_mask, number);
  for (const int number : kSignals) {
    struct sigaction before {};
    ::sigaction(number, nullptr, &before);
    if (before.sa_handler != SIG_IGN) ::sigaction(number, &action, nullptr);
  }
}

StagedFile::StagedFile(fs::path target) : target_(std::move(target)) {
  path_ = target_.string() + "." + std::to_string(::getpid());
  set_staged(path_);
}

StagedFile::~StagedFile() { remove_staged(); }

void StagedFile::publish() {
  const Publishing publishing;
  if (::rename(path_.c_str(), target_of(target_).c_str()) != 0)
    fail(target_, "cannot be written (" + system_text() + ")", "give another --out");
  is_staged = false;
}

ResultsFolder::ResultsFolder(fs::path out) : out_(std::move(out)) {
  lock_ = ::open(out_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock_ < 0)
    fail(out_, "cannot be read (" + system_text() + ")", "choose a folder that can be");
  // A file system without locks has none to give: then nothing is checked.
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(lock_);
    fail(out_, "another replay writes there", "wait until it has ended, or give another --out");
  }
  std::error_code error;  // of replays that were killed: nobody else has the lock
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(out_, error)) {
    if (entry.path().filename().string().starts_with(kStagePrefix)) left.push_back(entry.path());
  }
  for (const fs::path& folder : left) fs::remove_all(folder, error);
}

ResultsFolder::~ResultsFolder() {
  if (!stage_.empty()) remove_staged();
  ::close(lock_);
}

const fs::path& ResultsFolder::stage() {
  if (!stage_.empty()) return stage_;
  const fs::path folder = out_ / (std::string(kStagePrefix) + std::to_string(::getpid()));
  set_staged(folder);
  if (::mkdir(folder.c_str(), 0777) != 0) {
    const std::string text = system_text();
    fail(out_, "cannot be written to (" + text + ")", "check its permissions and the free space");
  }
  return stage_ = folder;
}

void ResultsFolder::publish(const std::string& index) {
  std::vector<std::pair<fs::path, fs::path>> moves;
  for (const auto& entry : fs::directory_iterator(stage()))
    moves.emplace_back(entry.path(), target_of(out_ / entry.path().filename()));
  std::sort(moves.begin(), moves.end(), [&](const auto& a, const auto& b) {
    return (a.first.filename() == index) < (b.first.filename() == index);
  });
  const Publishing publishing;
  std::error_code error;
  fs::remove(target_of(out_ / index), error);
  for (const auto& [from, to] : moves) {
    fs::rename(from, to, error);
    if (error == std::errc::cross_device_link) fs::copy_file(from, to, kReplace, error);
    if (error)
      fail(to, "cannot be written (" + error.message() + ")",
           "check the folder, its permissions and the free space");
  }
}

std::string ResultsFolder::in_place(std::string text) const {
  if (stage_.empty()) return text;
  const std::string staged = stage_.string();
  for (std::size_t at = 0; (at = text.find(staged, at)) != std::string::npos;
       at += out_.string().size())
    text.replace(at, staged.size(), out_.string());
  return text;
}

}  // namespace opd::tb
