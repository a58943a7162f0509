#include "opd/trace/whole_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <system_error>

namespace opd::trace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTarget = "check the folder, its permissions and the free space";

[[noreturn]] void fail_to_write(const std::string& file, std::string_view action) {
  throw TraceError(
      file, "file",
      "cannot be " + std::string(action) + " (" + std::generic_category().message(errno) + ")",
      kTarget);
}

/// The file that a path stands for; it need not be there. Devices, pipes and sockets throw: to
/// rename something onto /dev/null would put a file in its place.
fs::path target_of(fs::path path) {
  const std::string named = path.string();
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode))
    throw TraceError(named, "file", "is not a regular file", "give the path of a file");
  constexpr int kMostLinks = 40;  // as the kernel has it
  std::error_code error;
  for (int links = 0; fs::is_symlink(fs::symlink_status(path, error)); ++links) {
    if (links == kMostLinks) {
      errno = ELOOP;
      fail_to_write(named, "created");
    }
    const fs::path next = fs::read_symlink(path, error);
    path = next.is_absolute() ? next : path.parent_path() / next;
  }
  return path;
}

/// A file that is closed and removed unless it was renamed to its target.
class Temporary {
 public:
  explicit Temporary(const fs::path& path)
      : named_(path.string()), target_(target_of(path).string()), path_(target_ + ".XXXXXX") {
    descriptor_ = ::mkostemp(path_.data(), O_CLOEXEC);
    if (descriptor_ < 0) {
      path_.clear();
      fail_to_write(named_, "created");
    }
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  ~Temporary() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail_to_write(named_, "written");
      bytes = bytes.subspan(static_cast<std::size_t>(count));
    }
  }

  void publish() {
    // mkostemp gives 0600; a file gets what open() would have given it.
    const mode_t mask = ::umask(0);
    ::umask(mask);
    if (::fchmod(descriptor_, 0666 & ~mask) != 0 || ::fsync(descriptor_) != 0) {
      fail_to_write(named_, "synchronised");
    }
    if (::rename(path_.c_str(), target_.c_str()) != 0) fail_to_write(named_, "renamed to");
    path_.clear();
  }

 private:
  std::string named_;   // for messages
  std::string target_;  // behind its links
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace

void write_whole(const fs::path& path, std::span<const std::byte> bytes) {
  Temporary temporary(path);
  temporary.write(bytes);
  temporary.publish();
}

void write_whole(const fs::path& path, std::string_view text) {
  write_whole(path, std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace opd::trace
