// Goal: the audit log has a line for a call with a known key whose request could not be read.
#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "router/front_end/api_keys.h"
#include "router/front_end/audit_log.h"
#include "tests/testing/http_client.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/http/front_end_parts.h"

namespace tandem::router {
namespace {

using ::nlohmann::json;
using ::tandem::testing::HttpSocket;

class AuditFault : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(keys_, ApiKeys::Parse(absl::StrCat("alice ", Sha256Hex("k")), "keys"));
    ASSERT_OK_AND_ASSIGN(log_, AuditLog::Open(path_, "router-7"));
    AnswerSession::Deps session = parts_.Session(inbox_, constraints_, long_work_);
    session.audit = log_.get();
    HttpApi::Deps deps{session, status_, [] { return true; }, [] { return 4096; },
                       [] { return absl::ZeroDuration(); }};
    deps.keys = keys_.get();
    HttpApiOptions options;
    options.server.address = "127.0.0.1:0";
    ASSERT_OK_AND_ASSIGN(http_, HttpApi::Start(options, std::move(deps)));
  }
  ~AuditFault() override {
    if (http_ != nullptr) http_->Stop();
    std::remove(path_.c_str());
  }
  // The status of the answer to a request whose body is said to be larger than any may be.
  int SendTooLarge(const std::string& path, const std::string& headers) {
    HttpSocket socket(http_->address());
    EXPECT_TRUE(socket.Send(absl::StrCat("POST ", path, " HTTP/1.1\r\nhost: test\r\n", headers,
                                         "content-length: 99999999\r\n\r\n")));
    return socket.Read().status;
  }
  std::vector<json> Lines() {
    EXPECT_TRUE(log_->Flush(absl::Seconds(60)));
    std::ifstream in(path_);
    std::vector<json> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
    return lines;
  }

  FrontEndParts parts_;
  Inbox inbox_{64, [](std::vector<InboxItem>&) {}};
  guided::CompileQueue constraints_{[](const request::GuidedParams&) {}};
  LongWork long_work_;
  StatusBoard status_{inbox_};
  const std::string path_ = absl::StrCat(::testing::TempDir(), "/audit-fault-", ::getpid());
  std::unique_ptr<ApiKeys> keys_;
  std::unique_ptr<AuditLog> log_;
  std::unique_ptr<HttpApi> http_;
};

TEST_F(AuditFault, ACallThatIsNotReadHasALine) {
  const std::string key = "authorization: Bearer k\r\nx-request-id: large\r\n";
  EXPECT_EQ(SendTooLarge("/v1/completions", key), 413);
  const std::vector<json> lines = Lines();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["event"], "request");
  EXPECT_EQ(lines[0]["tenant"], "alice");
  EXPECT_EQ(lines[0]["what"], "POST /v1/completions");
  EXPECT_EQ(lines[0]["request_id"], "large");
  EXPECT_EQ(lines[0]["from"], "127.0.0.1");
  EXPECT_EQ(lines[0]["result"], "INVALID_ARGUMENT");
}

// The header may have come in part, without its key.
TEST_F(AuditFault, ACallOfNobodyHasNone) {
  EXPECT_EQ(SendTooLarge("/v1/completions", ""), 413);
  EXPECT_EQ(SendTooLarge("/v1/completions", "authorization: Bearer wrong\r\n"), 413);
  EXPECT_EQ(SendTooLarge("/health", "authorization: Bearer k\r\n"), 413);
  EXPECT_EQ(SendTooLarge("/nowhere", "authorization: Bearer k\r\n"), 413);
  EXPECT_TRUE(Lines().empty());
}

}  // namespace
}  // namespace tandem::router
