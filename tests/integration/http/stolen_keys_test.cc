// Goal: who holds a key that is not theirs gets what its tenant may have and no more: a stolen key
// is known by its line in the audit log and revoked alone; another tenant's key finds none of what
// a tenant asked, stored or caused; and of a caller without a key gRPC reads no message.
#include <grpcpp/generic/generic_stub.h>

#include <nlohmann/json.hpp>

#include "tests/integration/http/tenants_fixture.h"

namespace tandem::testing {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kMethods[] = {"Generate", "Abort",    "Tokenize",    "Detokenize",
                                    "GetModel", "GetTrace", "ListRequests"};

class StolenKeysTest : public TenantsTest {
 protected:
  HttpAnswer AskAs(const std::string& key, const std::string& request_line,
                   const std::string& body = "") {
    const std::vector<std::string> words = absl::StrSplit(request_line, ' ');
    const std::string authorization = "authorization: Bearer " + key + "\r\n";
    if (words[0] == "POST")
      return Ask(cluster_->http_address(), PostOf(words[1], body, authorization));
    return Ask(cluster_->http_address(),
               absl::StrCat(words[0], " ", words[1], " HTTP/1.1\r\nhost: test\r\n", authorization,
                            "\r\n"));
  }
  // Calls a method with `key`, and ends the call without a message if `ends`, or sends nothing.
  grpc::Status CallWithoutMessage(const std::string& method, const std::string& key, bool ends) {
    grpc::GenericStub stub(
        grpc::CreateChannel(cluster_->address(), grpc::InsecureChannelCredentials()));
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
    if (!key.empty()) Authorize(context, key);
    grpc::CompletionQueue queue;
    const auto stream = stub.PrepareCall(&context, "/tandem.v1.Tandem/" + method, &queue);
    void* tag = nullptr;
    bool ok = false;
    stream->StartCall(nullptr);
    queue.Next(&tag, &ok);
    if (ends) {
      stream->WritesDone(nullptr);
      queue.Next(&tag, &ok);
    }
    grpc::ByteBuffer response;
    stream->Read(&response, nullptr);
    queue.Next(&tag, &ok);
    EXPECT_FALSE(ok) << "no answer to a message that was not sent";
    grpc::Status status;
    stream->Finish(&status, nullptr);
    queue.Next(&tag, &ok);
    return status;
  }
};

// The server answers although no message ever comes: it does not wait for one, and so reads none.
TEST_F(StolenKeysTest, OfAStrangerGrpcReadsNoMessage) {
  Start(Line("alice") + Line("root", "scopes=admin"), {"--wrong-keys=0"});
  for (const char* method : kMethods) {
    for (const char* key : {"", "wrong"}) {
      EXPECT_EQ(CallWithoutMessage(method, key, /*ends=*/false).error_code(),
                grpc::StatusCode::UNAUTHENTICATED)
          << method;
    }
    EXPECT_EQ(CallWithoutMessage(method, "alice", /*ends=*/true).error_code(),
              grpc::StatusCode::INVALID_ARGUMENT)
        << method;
  }
  EXPECT_EQ(CallWithoutMessage("Generate", "root", /*ends=*/false).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(StolenKeysTest, AStolenKeyIsFoundInTheLogAndRevokedAlone) {
  const std::string audit = path_ + ".audit";
  Start(Line("alice", "sequences=2") +
            absl::StrCat("alice ", router::Sha256Hex("stolen"), "  # her laptop\n") + Line("bob"),
        {"--audit-log=" + audit, "--hash-step-time=5ms", "--wrong-keys=0"});
  // The thief gets no more than alice's sequences, and takes them from her, not from bob.
  const auto thief = Begin("stolen", Request("a", 4000));
  const auto thief_too = Begin("stolen", Request("b", 4000));
  EXPECT_EQ(Generate("stolen", Request("c", 1)).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(Generate("alice", Request("d", 1)).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(Generate("bob", Request("e", 1)).ok());
  // alice sees and ends what runs in her name.
  EXPECT_THAT(Running("alice"), ::testing::UnorderedElementsAre("a", "b"));
  EXPECT_TRUE(Abort("alice", "a").ok());
  EXPECT_TRUE(Abort("alice", "b").ok());
  EXPECT_TRUE(thief->Read().ok());
  EXPECT_TRUE(thief_too->Read().ok());
  // Which of her keys it was.
  const std::string name = router::Sha256Hex("stolen").substr(0, 12);
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  std::string log;
  while (!absl::StrContains(log, name) && absl::Now() < deadline) {
    std::ifstream in(audit);
    log.assign(std::istreambuf_iterator<char>(in), {});
  }
  EXPECT_THAT(log,
              HasSubstr("\"tenant\":\"alice\",\"key\":\"" + name + "\",\"from\":\"127.0.0.1\""));
  EXPECT_EQ(RunProgram({"tandem", "keys", "revoke", name, "--file=" + path_}).exit_code, 0);
  while (AskModels("stolen") != 401 && absl::Now() < deadline) {
  }
  EXPECT_EQ(AskModels("stolen"), 401);
  EXPECT_EQ(AskModels("alice"), 200);
  std::remove(audit.c_str());
}

TEST_F(StolenKeysTest, AnotherTenantsKeyFindsNothing) {
  Start(Line("alice") + Line("bob"), {"--hash-step-time=5ms"});
  const json made =
      AskAs("alice", "POST /v1/responses", R"({"model":"hash","input":"u","max_output_tokens":4})")
          .Json();
  const std::string id = made.value("id", "");
  ASSERT_FALSE(id.empty()) << made.dump();
  EXPECT_EQ(AskAs("alice", "GET /v1/responses/" + id).status, 200);
  EXPECT_EQ(AskAs("bob", "GET /v1/responses/" + id).status, 404);
  EXPECT_EQ(AskAs("bob", "DELETE /v1/responses/" + id).status, 404);
  EXPECT_EQ(AskAs("bob", "POST /v1/responses",
                  json({{"model", "hash"},
                        {"input", "u"},
                        {"max_output_tokens", 4},
                        {"previous_response_id", id}})
                      .dump())
                .status,
            404);
  EXPECT_EQ(AskAs("alice", "GET /v1/responses/" + id).status, 200) << "bob deleted nothing";
  EXPECT_TRUE(Generate("alice", Request("r", 2)).ok());
  EXPECT_EQ(AskAs("alice", "GET /traces/r").status, 200);
  EXPECT_EQ(AskAs("bob", "GET /traces/r").status, 404);
  EXPECT_EQ(AskAs("bob", "GET /traces/alice/r").status, 404);
  EXPECT_EQ(AskAs("bob", "GET /traces").Json().value("traces", json::array()).size(), 0u);
}

}  // namespace
}  // namespace tandem::testing
