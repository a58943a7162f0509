// Every rule of docs/formats.md "Trace", each broken once: the error must name file, field, fault
// and remedy.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <ostream>

#include "bad_traces.hpp"
#include "sample_traces.hpp"

namespace opd::tb {

void PrintTo(const BadTrace& bad, std::ostream* os) { *os << bad.name; }

namespace {

using trace::Trace;
using trace::TraceContent;
using trace::TraceError;
namespace fs = std::filesystem;

template <typename Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const TraceError& error) {
    return error.what();
  }
  return "accepted";
}

class BadInput : public testing::TestWithParam<BadTrace> {};

TEST_P(BadInput, IsRejectedByName) {
  const BadTrace& bad = GetParam();
  EXPECT_EQ(error_of([&] { Trace::parse(bad.bytes, "dir/bad.trace"); }),
            "dir/bad.trace: " + bad.error);
  try {
    Trace::parse(bad.bytes, "f");
    FAIL() << "accepted";
  } catch (const TraceError& error) {
    EXPECT_EQ(error.file(), "f");
    EXPECT_EQ(bad.error.rfind(error.field() + ": ", 0), 0u) << error.field();
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, BadInput, testing::ValuesIn(bad_traces()),
                         [](const testing::TestParamInfo<BadTrace>& info) {
                           return info.param.name;
                         });

TEST(BadInput, CasesAreManyAndHaveNamesOfTheirOwn) {
  std::vector<std::string> names;
  for (const BadTrace& bad : bad_traces()) names.push_back(bad.name);
  EXPECT_GE(names.size(), 320u);
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
}

/// A folder that goes with the test.
class TraceFiles : public testing::Test {
 protected:
  TraceFiles() {
    std::string name = (fs::temp_directory_path() / "opd_trace_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    folder_ = name;
  }
  ~TraceFiles() override { fs::remove_all(folder_); }
  std::string path(const char* name) const { return (folder_ / name).string(); }
  std::vector<std::string> listing() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }

  fs::path folder_;
};

TEST_F(TraceFiles, WhatIsNotAFileIsRejected) {
  const auto read = [&](const std::string& file) { return error_of([&] { Trace::read(file); }); };
  EXPECT_EQ(read(path("none")), path("none") +
                                    ": file: cannot be opened (No such file or directory); check "
                                    "the path and its permissions");
  EXPECT_EQ(read(folder_.string()),
            folder_.string() + ": file: is a directory; give the path of a trace file");
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  EXPECT_EQ(read(path("fifo")),
            path("fifo") + ": file: is not a regular file; give the path of a trace file");
  std::ofstream(path("empty")).close();
  EXPECT_EQ(
      read(path("empty")),
      path("empty") + ": file: is empty; the file is damaged or cut off: copy or capture it again");
  EXPECT_EQ(read(path("empty/x")),
            path("empty/x") +
                ": file: cannot be opened (Not a directory); check the path and its permissions");
}

TEST_F(TraceFiles, AFileWithoutPermissionIsRejected) {
  trace::write(sample_trace(), path("secret"));
  ASSERT_EQ(::chmod(path("secret").c_str(), 0), 0);
  if (::access(path("secret").c_str(), R_OK) == 0) GTEST_SKIP() << "this user may read everything";
  EXPECT_EQ(error_of([&] { Trace::read(path("secret")); }),
            path("secret") +
                ": file: cannot be opened (Permission denied); check the path and its permissions");
}

TEST_F(TraceFiles, AFailedWriteLeavesTheTargetAlone) {
  TraceContent content = sample_trace();
  trace::write(content, path("a.trace"));
  content.max_abs[0] = -1;
  EXPECT_EQ(error_of([&] { trace::write(content, path("a.trace")); }),
            path("a.trace") +
                ": max_abs: step 0, probe \"layer.0/out\": is negative; capture the trace again "
                "with opd.trace");
  EXPECT_EQ(Trace::read(path("a.trace")).max_abs(0, 0), 1.0f);
  EXPECT_EQ(listing(), std::vector<std::string>{"a.trace"});

  fs::create_directory(path("folder"));
  EXPECT_NE(error_of([&] {
              trace::write(sample_trace(), path("folder"));
            }).find("file: cannot be renamed to"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              trace::write(sample_trace(), path("none/a.trace"));
            }).find("file: cannot be created"),
            std::string::npos);
  EXPECT_EQ(listing(), (std::vector<std::string>{"a.trace", "folder"}));  // no temporary stays
}

TEST_F(TraceFiles, ADeviceOrAPipeIsNotReplaced) {
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  fs::create_symlink("/dev/null", path("link"));
  for (const std::string& target : {path("fifo"), path("link"), std::string("/dev/full")}) {
    EXPECT_EQ(error_of([&] { trace::write(sample_trace(), target); }),
              target + ": file: is not a regular file; give the path of a file");
  }
  EXPECT_TRUE(fs::is_fifo(path("fifo")) && fs::is_symlink(path("link")));
  EXPECT_TRUE(fs::is_character_file("/dev/null") && fs::is_character_file("/dev/full"));
  EXPECT_EQ(listing(), (std::vector<std::string>{"fifo", "link"}));
}

TEST_F(TraceFiles, ALinkStaysALink) {
  fs::create_directory(path("there"));
  fs::create_symlink("there/a.trace", path("link"));
  for (int i = 0; i < 2; ++i) {  // leads nowhere at first
    trace::write(sample_trace(), path("link"));
    EXPECT_TRUE(fs::is_symlink(path("link")));
    EXPECT_EQ(Trace::read(path("there/a.trace")).name(), sample_trace().name);
  }
  fs::create_symlink("round", path("round"));
  EXPECT_NE(
      error_of([&] { trace::write(sample_trace(), path("round")); }).find("cannot be created"),
      std::string::npos);
  EXPECT_EQ(listing(), (std::vector<std::string>{"link", "round", "there"}));
}

TEST_F(TraceFiles, AWriteReplacesTheTargetWithTheUsualPermissions) {
  const mode_t mask = ::umask(027);
  trace::write(sample_trace(), path("a.trace"));
  ::umask(mask);
  EXPECT_EQ(fs::status(path("a.trace")).permissions(), static_cast<fs::perms>(0640));
  const Trace before = Trace::read(path("a.trace"));
  TraceContent content = sample_trace();
  content.name = "second";
  trace::write(content, path("a.trace"));
  EXPECT_EQ(Trace::read(path("a.trace")).name(), "second");
  EXPECT_EQ(before.name(), "sample-1.0_a");  // the old map lives on
  EXPECT_EQ(before.max_abs(3, 4), 5.5f);
}

TEST(BadContent, WhatNoFileCanHoldIsRejectedByTheWriter) {
  const auto error = [](auto edit) {
    TraceContent content = sample_trace();
    edit(content);
    return error_of([&] { trace::serialize(content, "f"); });
  };
  EXPECT_EQ(error([](TraceContent& c) { c.model = "\xFF"; }),
            "f: __metadata__: holds text that is not UTF-8; use UTF-8 names and texts");
  EXPECT_EQ(error([](TraceContent& c) { c.probes[0].name = "\xFF"; }),
            "f: __metadata__: holds text that is not UTF-8; use UTF-8 names and texts");
  EXPECT_EQ(error([](TraceContent& c) { c.max_abs.pop_back(); }),
            "f: max_abs: has shape [19] instead of [4, 5]; capture the trace again with opd.trace");
  EXPECT_EQ(error([](TraceContent& c) { c.raw["loss"].pop_back(); }),
            "f: tensor \"raw/loss\": has dtype U8 instead of F32; capture the trace again with "
            "opd.trace");
  EXPECT_EQ(error([](TraceContent& c) { c.raw["x"] = std::vector<std::byte>(4); }),
            "f: tensor \"raw/x\": is of no probe in the list; add the probe or remove the tensor");
  EXPECT_EQ(error([](TraceContent& c) { c.step.clear(); }),
            "f: step: is missing; capture the trace again with opd.trace");
  EXPECT_EQ(error([](TraceContent&) {}), "accepted");
}

}  // namespace
}  // namespace opd::tb
