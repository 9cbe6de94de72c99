// Goal: what `tandem keys` writes takes the place of the keys file and of no link, and keeps its
// owner, group and mode, so that a router of another user reads on.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/command_line/commands.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

class KeysCommandFiles : public ::testing::Test {
 protected:
  KeysCommandFiles() {
    fs::remove_all(folder_);
    fs::create_directories(folder_ / "elsewhere");
    umask_ = umask(0077);
  }
  ~KeysCommandFiles() override {
    umask(umask_);
    fs::remove_all(folder_);
  }

  int Keys(std::vector<std::string> words, const fs::path& file) {
    words.push_back(absl::StrCat("--file=", file.string()));
    ::testing::internal::CaptureStdout();
    const int code = NewKeysCommand()->Run(words, {});
    printed_ = ::testing::internal::GetCapturedStdout();
    return code;
  }
  static std::string TextOf(const fs::path& file) {
    std::ifstream in(file);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  static struct stat StatOf(const fs::path& file) {
    struct stat found = {};
    EXPECT_EQ(lstat(file.c_str(), &found), 0) << file;
    return found;
  }

  const fs::path folder_ =
      fs::path(::testing::TempDir()) / absl::StrCat("keys_command_", ::getpid());
  const fs::path real_ = folder_ / "elsewhere" / "keys", link_ = folder_ / "keys";
  std::string printed_;
  mode_t umask_ = 0;
};

TEST_F(KeysCommandFiles, ALinkStaysAndItsFileChanges) {
  ASSERT_EQ(Keys({"add", "alice"}, real_), 0);
  fs::create_symlink("elsewhere/keys", link_);
  ASSERT_EQ(Keys({"add", "bob"}, link_), 0);
  EXPECT_TRUE(fs::is_symlink(link_));
  EXPECT_TRUE(absl::StrContains(TextOf(real_), "alice "));
  EXPECT_TRUE(absl::StrContains(TextOf(real_), "bob "));
  ASSERT_EQ(Keys({"revoke", "alice"}, link_), 0);
  EXPECT_TRUE(fs::is_symlink(link_));
  EXPECT_FALSE(absl::StrContains(TextOf(real_), "alice "));
  ASSERT_EQ(Keys({"list"}, link_), 0);
  EXPECT_TRUE(absl::StrContains(printed_, "bob"));
}

TEST_F(KeysCommandFiles, ALinkToNoFileYetGetsOne) {
  fs::create_symlink("elsewhere/keys", link_);
  ASSERT_EQ(Keys({"add", "alice"}, link_), 0);
  EXPECT_TRUE(fs::is_symlink(link_));
  EXPECT_TRUE(absl::StrContains(TextOf(real_), "alice "));
  EXPECT_EQ(StatOf(real_).st_mode & 0777, 0600u);
}

// Not the file, whose lines are right.
TEST_F(KeysCommandFiles, AWrongSettingIsBlamedOnItsFlag) {
  ASSERT_EQ(Keys({"add", "alice"}, real_), 0);
  const std::string before = TextOf(real_);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Keys({"add", "bob", "--set=foo=1"}, real_), 1);
  const std::string error = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(absl::StrContains(error, "--set \"foo=1\", expected ")) << error;
  EXPECT_FALSE(absl::StrContains(error, real_.string())) << error;
  EXPECT_EQ(TextOf(real_), before);
  // A line of the file that is wrong is the file's.
  std::ofstream(real_, std::ios::app) << "nonsense\n";
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Keys({"add", "bob", "--set=foo=1"}, real_), 1);
  const std::string of_file = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(absl::StrContains(of_file, absl::StrCat(real_.string(), ":2: "))) << of_file;
}

// What is no file cannot be replaced by one.
TEST_F(KeysCommandFiles, WhatIsNoRegularFileIsRefused) {
  EXPECT_EQ(Keys({"list"}, "/dev/null"), 1);
  EXPECT_EQ(Keys({"list"}, "/tmp"), 1);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  // A link that leads to no path.
  fs::create_symlink(absl::StrCat("/proc/self/fd/", ends[0]), link_);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(Keys({"list"}, link_), 1);
  EXPECT_TRUE(
      absl::StrContains(::testing::internal::GetCapturedStderr(),
                        absl::StrCat("--file ", link_.string(), ": expected a regular file")));
  close(ends[0]);
  close(ends[1]);
}

TEST_F(KeysCommandFiles, TheModeStaysWhateverTheUmask) {
  ASSERT_EQ(Keys({"add", "alice"}, real_), 0);
  ASSERT_EQ(chmod(real_.c_str(), 0664), 0);
  // What an editor left that was ended is no part of it.
  fs::create_symlink("/dev/null", real_.string() + ".new");
  ASSERT_EQ(Keys({"add", "bob"}, real_), 0);
  EXPECT_EQ(StatOf(real_).st_mode, S_IFREG | 0664u);
  EXPECT_FALSE(fs::exists(fs::symlink_status(real_.string() + ".new")));
}

TEST_F(KeysCommandFiles, AnotherUsersFileStaysTheirs) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, who may give files away";
  ASSERT_EQ(Keys({"add", "alice"}, real_), 0);
  ASSERT_EQ(chown(real_.c_str(), 12345, 23456), 0);
  ASSERT_EQ(chmod(real_.c_str(), 0640), 0);
  ASSERT_EQ(Keys({"add", "bob"}, real_), 0);
  ASSERT_EQ(Keys({"revoke", "alice"}, real_), 0);
  EXPECT_FALSE(absl::StrContains(TextOf(real_), "alice "));
  const struct stat after = StatOf(real_);
  EXPECT_EQ(after.st_uid, 12345u);
  EXPECT_EQ(after.st_gid, 23456u);
  EXPECT_EQ(after.st_mode & 0777, 0640u);
}

// Who cannot keep the owner changes nothing, and says so.
TEST_F(KeysCommandFiles, WithoutTheRightToKeepTheOwnerNothingChanges) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, who may act as others";
  ASSERT_EQ(Keys({"add", "alice"}, real_), 0);
  ASSERT_EQ(chmod(real_.c_str(), 0644), 0);
  for (const fs::path& folder : {folder_, folder_ / "elsewhere"})
    ASSERT_EQ(chmod(folder.c_str(), 0777), 0);
  const std::string before = TextOf(real_);
  ASSERT_EQ(seteuid(12345), 0);
  const int code = Keys({"revoke", "alice"}, real_);
  ASSERT_EQ(seteuid(0), 0);
  EXPECT_EQ(code, 1);
  EXPECT_EQ(TextOf(real_), before);
  EXPECT_FALSE(fs::exists(real_.string() + ".new"));
}

}  // namespace
}  // namespace tandem::cli
