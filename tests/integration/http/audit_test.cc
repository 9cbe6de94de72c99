// Goal: the audit log of a real router says who asked what, from where, with which result, also of
// keys that were refused and of operators, over every port; and nothing of prompts.
#include <nlohmann/json.hpp>

#include "tests/integration/http/tenants_fixture.h"

namespace tandem::testing {
namespace {

using nlohmann::json;

class AuditTest : public TenantsTest {
 protected:
  ~AuditTest() override { std::remove(audit_.c_str()); }
  static std::string GetWith(const std::string& path, const std::string& key) {
    return GetOf(path, "authorization: Bearer " + key + "\r\n");
  }
  // Waits until the audit log has a line that `is` what is looked for, and returns it.
  template <typename Is>
  json AwaitLine(Is is) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (absl::Now() < deadline) {
      std::ifstream in(audit_);
      for (std::string text; std::getline(in, text);) {
        json line = json::parse(text, nullptr, /*allow_exceptions=*/false);
        if (!line.is_discarded() && is(line)) return line;
      }
    }
    ADD_FAILURE() << "no such line";
    return {};
  }

  const std::string audit_ = absl::StrCat(::testing::TempDir(), "/audit-log-", ::getpid());
};

TEST_F(AuditTest, TheAuditLogTellsWhoAskedWhat) {
  Start(Line("alice") + Line("root", "scopes=admin"), {"--audit-log=" + audit_, "--admin=0"});
  const std::string secret = "what nobody else may read";
  v1::GenerateRequest request = Request("over-grpc", 3);
  request.set_text(secret);
  EXPECT_TRUE(Generate("alice", request).ok());
  const std::string body = json({{"prompt", {secret, secret}}, {"max_tokens", 2}}).dump();
  Ask(cluster_->http_address(),
      PostOf("/v1/completions", body,
             "authorization: Bearer alice\r\nx-request-id: over-http\r\n"));
  Ask(cluster_->http_address(), GetWith("/v1/models", "wrong"));
  Ask(cluster_->admin_address(), GetWith("/status", "alice"));
  EXPECT_EQ(Generate("wrong", request).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  Ask(cluster_->admin_address(), PostOf("/drain", "{}", "authorization: Bearer root\r\n"));

  const auto what = [](const json& line, const char* event, const char* text) {
    return line.value("event", "") == event && line.value("what", "") == text;
  };
  json line = AwaitLine([&](const json& l) {
    return what(l, "request", "/tandem.v1.Tandem/Generate") && l.contains("request_id");
  });
  EXPECT_EQ(line["tenant"], "alice");
  EXPECT_EQ(line["key"], router::Sha256Hex("alice").substr(0, 12));
  EXPECT_EQ(line["from"], "127.0.0.1");
  EXPECT_EQ(line["front_end"], "grpc");
  EXPECT_EQ(line["request_id"], "over-grpc");
  EXPECT_EQ(line["result"], "OK");
  EXPECT_EQ(line["output_tokens"], 3);
  line = AwaitLine([&](const json& l) { return what(l, "request", "POST /v1/completions"); });
  EXPECT_EQ(line["request_id"], "over-http");
  EXPECT_EQ(line["output_tokens"], 4) << "of both prompts";
  line = AwaitLine([&](const json& l) { return what(l, "login", "GET /v1/models"); });
  EXPECT_EQ(line["result"], "UNAUTHENTICATED");
  EXPECT_FALSE(line.contains("tenant"));
  AwaitLine([&](const json& l) { return what(l, "login", "/tandem.v1.Tandem/Generate"); });
  line = AwaitLine([&](const json& l) { return what(l, "admin", "GET /status"); });
  EXPECT_EQ(line["tenant"], "alice");
  EXPECT_EQ(line["result"], "PERMISSION_DENIED");
  line = AwaitLine([&](const json& l) { return what(l, "admin", "POST /drain"); });
  EXPECT_EQ(line["tenant"], "root");
  EXPECT_EQ(line["front_end"], "admin");
  EXPECT_EQ(line["result"], "OK");
  std::ifstream in(audit_);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(whole.find(secret), std::string::npos);
}

}  // namespace
}  // namespace tandem::testing
