// Goal: one tenant cannot abort, look up, block or profit from another's requests; an admin can see
// and end them; quotas count running sequences, and tokens computed for an answer whose client has
// left; a client that sends wrong keys waits; keys that `tandem keys` adds and revokes take effect
// without a restart.
#include <cstring>
#include <fstream>
#include <iterator>

#include "tests/integration/http/tenants_fixture.h"
#include "tests/testing/test_folder.h"

namespace tandem::testing {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST_F(TenantsTest, EachControlsItsOwnRequestsOnly) {
  Start(Line("alice") + Line("bob") + Line("root", "scopes=admin"), {"--hash-step-time=5ms"});
  const auto alice = Begin("alice", Request("r", 4000));
  // The same name is bob's to use, and ends nothing of alice's.
  v1::Finished bobs;
  EXPECT_TRUE(Generate("bob", Request("r", 3), &bobs).ok());
  EXPECT_EQ(bobs.usage().output_tokens(), 3);
  EXPECT_TRUE(Abort("bob", "r").ok());
  EXPECT_TRUE(Abort("bob", "alice/r").ok());
  v1::RequestTrace trace;
  EXPECT_TRUE(Trace("bob", "r", trace).ok());
  EXPECT_EQ(trace.request_id(), "r");
  EXPECT_EQ(trace.sequences(0).usage().output_tokens(), 3);
  EXPECT_EQ(Trace("bob", "alice/r", trace).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Generate("root", Request("x", 1)).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  v1::GenerateResponse part;
  EXPECT_TRUE(alice->reader->Read(&part)) << "it still runs";
  EXPECT_TRUE(Abort("root", "alice/r").ok());
  v1::Finished finished;
  EXPECT_TRUE(alice->Read(&finished).ok());
  EXPECT_EQ(finished.reason(), v1::FINISH_REASON_ABORTED);
  EXPECT_TRUE(Trace("root", "alice/r", trace).ok());
  EXPECT_EQ(trace.request_id(), "alice/r");
}

TEST_F(TenantsTest, EachListsItsOwnRequestsOnly) {
  Start(Line("alice") + Line("bob") + Line("root", "scopes=admin"), {"--hash-step-time=5ms"});
  const auto alice = Begin("alice", Request("r", 4000));
  EXPECT_THAT(Running("alice"), ElementsAre("r"));
  EXPECT_THAT(Running("bob"), ElementsAre());
  EXPECT_THAT(Running("root"), ElementsAre("alice/r"));
  EXPECT_THAT(Running("nobody"), ElementsAre(HasSubstr("key")));
  EXPECT_THAT(Running("alice", 101),
              ElementsAre(HasSubstr("limit: 101, expected a number in [0, 100]")));
  EXPECT_TRUE(Abort("alice", "r").ok());
  EXPECT_TRUE(alice->Read().ok());
}

// A tenant that learns the id of another's event gets a stream of its own for its own body.
TEST_F(TenantsTest, AStreamIsContinuedByItsOwnerOnly) {
  Start(Line("alice") + Line("bob"), {"--hash-step-time=5ms"});
  const auto ask = [](const std::string& tenant, const std::string& header) {
    return PostOf("/v1/completions",
                  R"({"prompt":"u","stream":true,"max_tokens":300,"ignore_eos":true})",
                  absl::StrCat("authorization: Bearer ", tenant, "\r\n", header, "\r\n"));
  };
  HttpSocket alice(cluster_->http_address());
  alice.Send(ask("alice", "x-tandem-resumable: 1"));
  constexpr char kId[] = "\nid: ";
  while (!absl::StrContains(alice.buffer(), kId) && alice.ReadSome()) {
  }
  const size_t begin = alice.buffer().find(kId) + std::strlen(kId);
  const std::string id = alice.buffer().substr(begin, alice.buffer().find('\n', begin) - begin);
  const HttpAnswer bobs = Ask(cluster_->http_address(), ask("bob", "last-event-id: " + id));
  EXPECT_THAT(bobs.body, HasSubstr("\"finish_reason\":\"length\"")) << "charged to bob";
  EXPECT_THAT(alice.Read().body, HasSubstr("\"finish_reason\":\"length\"")) << "not replaced";
}

TEST_F(TenantsTest, CachedPromptsAreTheirsOrTheirGroups) {
  Start(Line("alice") + Line("bob") + Line("carol", "cache=team") + Line("dave", "cache=team"));
  const auto cached = [this](const std::string& tenant) {
    v1::Finished finished;
    EXPECT_TRUE(Generate(tenant, Request("", 2), &finished).ok());
    return finished.usage().cached_tokens();
  };
  EXPECT_EQ(cached("alice"), 0);
  EXPECT_GT(cached("alice"), 0);
  EXPECT_EQ(cached("bob"), 0) << "the time of an answer tells nothing of alice's prompts";
  EXPECT_EQ(cached("carol"), 0);
  EXPECT_GT(cached("dave"), 0);
}

TEST_F(TenantsTest, SequencesAtATimeAndPriorities) {
  Start(Line("alice", "sequences=3") + Line("bob", "priority=-5..5"), {"--hash-step-time=5ms"});
  v1::GenerateRequest two = Request("two", 4000);
  two.set_n(2);
  const auto running = Begin("alice", two);
  const grpc::Status refused = Generate("alice", two);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("2 sequences running, and 2 more"));
  v1::GenerateRequest best = Request("best", 1);
  best.set_best_of(2);
  EXPECT_EQ(Generate("alice", best).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(Generate("alice", Request("one", 1)).ok());
  EXPECT_TRUE(Abort("alice", "two").ok());
  EXPECT_TRUE(running->Read().ok());
  EXPECT_TRUE(Generate("alice", best).ok()) << "its place is free when the client has its end";
  const std::string batch = json({{"prompt", {"a", "b", "c", "d"}}, {"max_tokens", 1}}).dump();
  EXPECT_EQ(Ask(cluster_->http_address(),
                PostOf("/v1/completions", batch, "authorization: Bearer alice\r\n"))
                .status,
            429);
  const auto with_priority = [](int32_t priority) {
    v1::GenerateRequest request = Request("", 1);
    request.set_priority(priority);
    return request;
  };
  EXPECT_EQ(Generate("alice", with_priority(-1)).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(Generate("alice", with_priority(1)).ok());
  EXPECT_TRUE(Generate("bob", with_priority(-5)).ok());
}

// The lost call still runs, and its tenant may run no other.
TEST_F(TenantsTest, AResumedCallTakesThePlaceOfTheLostOne) {
  Start(Line("alice", "sequences=1"), {"--hash-step-time=5ms"});
  const auto seeded = [](const std::string& id, int32_t max_tokens) {
    v1::GenerateRequest request = Request(id, max_tokens);
    request.mutable_sampling()->set_seed(7);
    return request;
  };
  const auto lost = Begin("alice", seeded("r", 4000));
  v1::GenerateRequest other = seeded("other", 3);
  other.set_resume_from_token(1);
  EXPECT_EQ(Generate("alice", other).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  v1::GenerateRequest again = seeded("r", 3);
  again.set_resume_from_token(1);
  const grpc::Status resumed = Generate("alice", again);
  EXPECT_TRUE(resumed.ok()) << resumed.error_message();
  v1::Finished finished;
  EXPECT_TRUE(lost->Read(&finished).ok());
  EXPECT_EQ(finished.reason(), v1::FINISH_REASON_ABORTED);

  HttpSocket stream(cluster_->http_address());
  const std::string body = R"({"prompt":"u","stream":true,"max_tokens":900,"ignore_eos":true})";
  const std::string key = "authorization: Bearer alice\r\n";
  stream.Send(PostOf("/v1/completions", body, key + "x-tandem-resumable: 1\r\n"));
  constexpr char kId[] = "\nid: ";
  while (!absl::StrContains(stream.buffer(), kId) && stream.ReadSome()) {
  }
  const size_t begin = stream.buffer().find(kId) + std::strlen(kId);
  const std::string id = stream.buffer().substr(begin, stream.buffer().find('\n', begin) - begin);
  const HttpAnswer rest =
      Ask(cluster_->http_address(),
          PostOf("/v1/completions", body, key + "last-event-id: " + id + "\r\n"));
  EXPECT_EQ(rest.status, 200);
  EXPECT_THAT(rest.body, HasSubstr("\"finish_reason\":\"length\""));
  EXPECT_THAT(stream.Read().body, Not(HasSubstr("\"finish_reason\":\"length\"")));
}

TEST_F(TenantsTest, ClosingEarlyIsNotFree) {
  Start(Line("alice", "tokens_per_minute=60"), {"--hash-step-time=5ms"});
  {
    const auto running = Begin("alice", Request("r", 4000));
    running->context.TryCancel();
    EXPECT_EQ(running->Read().error_code(), grpc::StatusCode::CANCELLED);
  }
  // The prompt alone has more than 60 tokens.
  const grpc::Status refused = Generate("alice", Request("s", 1));
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.error_message(), HasSubstr("60 tokens a minute"));
}

// Each wrong key doubles the wait, so some call comes too early, however slow this machine is.
TEST_F(TenantsTest, WhoGuessesKeysWaits) {
  Start(Line("alice"), {"--wrong-keys=3"});
  const std::string guess = GetOf("/v1/models", "authorization: Bearer wrong\r\n");
  HttpAnswer answer;
  int wrong = 0;
  while ((answer = Ask(cluster_->http_address(), guess)).status == 401 && wrong < 20) ++wrong;
  EXPECT_GT(wrong, 3);
  EXPECT_EQ(answer.status, 429) << answer.body;
  EXPECT_THAT(answer.body, HasSubstr("wrong API keys in a row from 127.0.0.1"));
  EXPECT_NE(answer.Header("retry-after"), "");
  // The ports count together.
  grpc::Status refused;
  do {
    refused = Generate("wrong", Request("r", 1));
  } while (refused.error_code() == grpc::StatusCode::UNAUTHENTICATED && ++wrong < 20);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << refused.error_message();
  EXPECT_THAT(refused.error_message(), HasSubstr("wrong API keys in a row from 127.0.0.1"));
  // What needs no key is answered all the time.
  EXPECT_EQ(Ask(cluster_->http_address(), GetOf("/health")).status, 200);
}

TEST_F(TenantsTest, KeysComeAndGoWithoutARestart) {
  Start(Line("alice"), {"--wrong-keys=0"});  // the test asks before the router has read the file
  const auto keys = [this](std::vector<std::string> words) {
    words.insert(words.begin(), {"tandem", "keys"});
    words.push_back("--file=" + path_);
    return RunProgram(words);
  };
  const ProgramRun added = keys({"add", "bob", "--set=sequences=4,scopes=infer,admin"});
  ASSERT_EQ(added.exit_code, 0) << added.output;
  ASSERT_THAT(added.output, HasSubstr("\nsk-"));
  const std::string key(absl::StripAsciiWhitespace(
      absl::string_view(added.output).substr(added.output.find("\nsk-"))));
  EXPECT_THAT(keys({"list"}).output, HasSubstr("sequences=4 scopes=infer,admin"));
  const auto becomes = [this](const std::string& of, int status) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (AskModels(of) != status && absl::Now() < deadline) {
    }
    EXPECT_EQ(AskModels(of), status);
  };
  becomes(key, 200);
  EXPECT_EQ(keys({"revoke", "alice"}).exit_code, 0);
  becomes("alice", 401);
  becomes(key, 200);
  EXPECT_EQ(keys({"revoke", "alice"}).exit_code, 1);
  EXPECT_EQ(keys({"add", "a/b"}).exit_code, 1);
  EXPECT_EQ(keys({"ad"}).exit_code, 2);
}

// A stolen key is revoked. If the tenant's quota stood in its line, it must not go with it.
TEST_F(TenantsTest, ARevokedKeyLeavesItsTenantsSettings) {
  const TestFolder folder("keys-of-tenants");
  const std::string path = folder / "keys";
  const auto keys = [&path](std::vector<std::string> words) {
    words.insert(words.begin(), {"tandem", "keys"});
    words.push_back("--file=" + path);
    const ProgramRun run = RunProgram(words);
    EXPECT_EQ(run.exit_code, 0) << run.output;
    return run.output;
  };
  const auto write = [&path](const std::string& text) { std::ofstream(path) << text; };
  const auto read = [&path] {
    std::ifstream in(path);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  const std::string a(64, 'a'), b(64, 'b'), c(64, 'c'), d(64, 'd');
  write("# keys\nacme " + a + " requests_per_minute=6 scopes=admin # stolen\n\tbob " + d +
        " weight=2\nacme " + b + " scopes=admin # laptop\nacme " + c + "\n");
  keys({"revoke", a.substr(0, 12)});
  EXPECT_EQ(read(), "# keys\n\tbob " + d + " weight=2\nacme " + b +
                        " scopes=admin requests_per_minute=6 # laptop\nacme " + c + "\n");
  keys({"revoke", b});
  EXPECT_EQ(read(), "# keys\n\tbob " + d + " weight=2\nacme " + c +
                        " scopes=admin requests_per_minute=6\n");
  keys({"revoke", "acme"});
  EXPECT_EQ(read(), "# keys\n\tbob " + d + " weight=2\n");
}

}  // namespace
}  // namespace tandem::testing
