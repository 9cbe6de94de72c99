// Goal: the audit log has one whole line for each call, never text of strangers unescaped; a moved
// file is replaced; a file that takes nothing costs no caller time, and what did not fit in memory
// is counted and told; strangers write only so many lines a second.
#include "router/front_end/audit_log.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/telemetry/log.h"
#include "router/front_end/api_keys.h"
#include "router/front_end/audit_call.h"
#include "tests/testing/status_matchers.h"

namespace tandem::router {
namespace {

using nlohmann::json;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using testing::StatusIs;

constexpr absl::Duration kLong = absl::Seconds(60);

class AuditLogTest : public ::testing::Test {
 protected:
  AuditLogTest() { SetLogLevel(LogLevel::kError); }
  ~AuditLogTest() override {
    log_.reset();
    SetLogLevel(LogLevel::kInfo);
    std::remove(path_.c_str());
    std::remove(moved_.c_str());
  }
  void Open() { ASSERT_OK_AND_ASSIGN(log_, AuditLog::Open(path_, "router-7")); }
  static std::vector<json> LinesOf(const std::string& path) {
    std::ifstream in(path);
    std::vector<json> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
    return lines;
  }
  // Waits until the file at path_ has `count` lines.
  void AwaitLines(size_t count) {
    const absl::Time deadline = absl::Now() + kLong;
    while (LinesOf(path_).size() < count && absl::Now() < deadline)
      log_->Flush(absl::Milliseconds(50));
    EXPECT_THAT(LinesOf(path_), SizeIs(count));
  }
  AuditCall::Caller CallerWith(absl::string_view authorization) {
    return {.from = "192.0.2.7",
            .front_end = "http",
            .what = "POST /v1/completions",
            .request_id = "r-1",
            .authorization = authorization};
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/audit-", ::getpid());
  const std::string moved_ = path_ + ".1";
  std::unique_ptr<AuditLog> log_;
};

TEST_F(AuditLogTest, ACallIsOneLineHoweverItEnds) {
  Open();
  const Tenant alice("alice");
  {
    const auto call = AuditCall::Begin(log_.get(), CallerWith("Bearer k"), /*is_admin=*/false);
    call->SetTenant(&alice);
    v1::Finished finished;
    finished.mutable_usage()->set_prompt_tokens(3);
    finished.mutable_usage()->set_output_tokens(5);
    call->OnFinished(finished);
    call->OnFinished(finished);
    call->SetResult(absl::OkStatus());
  }
  {
    const auto call = AuditCall::Begin(log_.get(), CallerWith("Bearer k"), /*is_admin=*/true);
    call->SetTenant(&alice);
    call->SetHttpResult(403);
    call->SetHttpResult(200);
  }
  {
    const auto call = AuditCall::Begin(log_.get(), CallerWith("Bearer k"), /*is_admin=*/false);
    call->SetTenant(nullptr);  // nobody says what became of it
  }
  {
    const auto call = AuditCall::Begin(log_.get(), CallerWith("Bearer wrong"), /*is_admin=*/true);
    call->SetResult(absl::UnauthenticatedError("no"));
  }
  EXPECT_EQ(AuditCall::Begin(nullptr, CallerWith(""), false), nullptr);
  ASSERT_TRUE(log_->Flush(kLong));
  const std::vector<json> lines = LinesOf(path_);
  ASSERT_THAT(lines, SizeIs(4));
  EXPECT_EQ(lines[0]["router"], "router-7");
  EXPECT_EQ(lines[0]["event"], "request");
  EXPECT_EQ(lines[0]["tenant"], "alice");
  EXPECT_EQ(lines[0]["key"], Sha256Hex("k").substr(0, 12));
  EXPECT_EQ(lines[0]["from"], "192.0.2.7");
  EXPECT_EQ(lines[0]["what"], "POST /v1/completions");
  EXPECT_EQ(lines[0]["request_id"], "r-1");
  EXPECT_EQ(lines[0]["result"], "OK");
  EXPECT_EQ(lines[0]["prompt_tokens"], 6);
  EXPECT_EQ(lines[0]["output_tokens"], 10);
  EXPECT_EQ(lines[1]["event"], "admin");
  EXPECT_EQ(lines[1]["result"], "PERMISSION_DENIED") << "the first failure stays";
  EXPECT_FALSE(lines[1].contains("output_tokens"));
  EXPECT_EQ(lines[2]["result"], "CANCELLED");
  EXPECT_FALSE(lines[2].contains("tenant"));
  EXPECT_EQ(lines[3]["event"], "login");
  EXPECT_EQ(lines[3]["result"], "UNAUTHENTICATED");
  EXPECT_FALSE(lines[3].contains("key")) << "a digest of what somebody mistyped";
  struct stat made = {};
  ASSERT_EQ(stat(path_.c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 0777, 0600u);
}

TEST_F(AuditLogTest, TextsOfStrangersStayWithinTheirLine) {
  Open();
  log_->Record(
      {.event = "request", .what = "a\n{\"event\":\"admin\"}\xff" + std::string(9999, 'x')});
  ASSERT_TRUE(log_->Flush(kLong));
  const std::vector<json> lines = LinesOf(path_);
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_EQ(lines[0]["event"], "request");
  EXPECT_THAT(lines[0]["what"].get<std::string>(),
              HasSubstr("\n{\"event\":\"admin\"}\xEF\xBF\xBDx"));
  EXPECT_LT(lines[0]["what"].get<std::string>().size(), 300u);
}

TEST_F(AuditLogTest, AMovedFileIsReplaced) {
  Open();
  log_->Record({.event = "one"});
  ASSERT_TRUE(log_->Flush(kLong));
  ASSERT_EQ(std::rename(path_.c_str(), moved_.c_str()), 0);
  // The new file is there although nothing is written.
  struct stat made = {};
  const absl::Time deadline = absl::Now() + kLong;
  while (stat(path_.c_str(), &made) != 0 && absl::Now() < deadline)
    log_->Flush(absl::Milliseconds(20));
  log_->Record({.event = "two"});
  AwaitLines(1);
  EXPECT_EQ(LinesOf(path_)[0]["event"], "two");
  EXPECT_EQ(LinesOf(moved_)[0]["event"], "one");
}

TEST_F(AuditLogTest, ALineThatACrashCutOffEndsBeforeTheNext) {
  std::ofstream(path_) << "{\"event\":\"cut";
  Open();
  log_->Record({.event = "next"});
  ASSERT_TRUE(log_->Flush(kLong));
  std::ifstream in(path_);
  std::string line;
  ASSERT_TRUE(std::getline(in, line) && std::getline(in, line));
  EXPECT_EQ(json::parse(line)["event"], "next");
}

// A full disk: /dev/full refuses every byte.
TEST_F(AuditLogTest, AFullDiskHoldsUpNobodyAndLosesOnlyWhatMemoryDoesNotHold) {
  ASSERT_EQ(symlink("/dev/full", path_.c_str()), 0);
  Open();
  log_->Record({.event = "first"});
  EXPECT_FALSE(log_->Flush(absl::Milliseconds(1)));
  // Each call returns at once: the loop ends although nothing can be written.
  int64_t recorded = 1;
  const std::string what(200, 'w');
  while (log_->lost() < 100) {
    log_->Record({.event = "request", .what = what});
    ++recorded;
    ASSERT_LT(recorded, int64_t{1} << 20) << "memory is not bounded";
  }
  EXPECT_FALSE(log_->Flush(absl::Milliseconds(1)));
  // The disk has room again.
  ASSERT_EQ(unlink(path_.c_str()), 0);
  ASSERT_TRUE(log_->Flush(kLong));
  log_.reset();
  const std::vector<json> lines = LinesOf(path_);
  EXPECT_EQ(lines[0]["event"], "first");
  int64_t told = 0, kept = 0;
  for (const json& line : lines) {
    if (line["event"] == "lost") {
      told += line["count"].get<int64_t>();
    } else {
      ++kept;
    }
  }
  EXPECT_EQ(told, 100);
  EXPECT_EQ(kept, recorded - 100);
}

TEST_F(AuditLogTest, StrangersWriteOnlySoManyLines) {
  Open();
  const absl::Time now = absl::UnixEpoch() + absl::Hours(1);
  for (int i = 0; i < 1000; ++i) log_->RecordStranger({.event = "login"}, now);
  log_->RecordStranger({.event = "login"}, now + absl::Seconds(1));
  EXPECT_EQ(log_->lost(), 1000 - AuditLog::kStrangersPerSecond);
  log_.reset();
  int64_t logins = 0, told = 0;
  for (const json& line : LinesOf(path_)) {
    if (line["event"] == "login") ++logins;
    if (line["event"] == "lost") told += line["count"].get<int64_t>();
  }
  EXPECT_EQ(logins, AuditLog::kStrangersPerSecond + 1);
  EXPECT_EQ(told, 1000 - AuditLog::kStrangersPerSecond);
}

TEST_F(AuditLogTest, AFileThatCannotBeOpenedIsNamed) {
  EXPECT_THAT(AuditLog::Open(::testing::TempDir() + "/no/such/folder", "r").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("/no/such/folder")));
}

}  // namespace
}  // namespace tandem::router
