// Goal: bytes that are no request - text that is not UTF-8, garbage, what a client of another
// protocol sends - get INVALID_ARGUMENT with the field and the byte at fault, from every method,
// and leave the router and its nodes well.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <functional>
#include <random>

#include "common/rpc/status.h"
#include "tandem/v1/client.grpc.pb.h"
#include "tests/integration/bad_input/bad_cluster.h"

namespace tandem::testing {
namespace {

using absl::StatusCode;
using ::testing::AllOf;
using ::testing::HasSubstr;

class WireErrors : public BadCluster {
 protected:
  // Sends `bytes` as the request of a unary or server-streaming method.
  absl::Status SendRaw(const std::string& method, const std::string& bytes) {
    if (channel_ == nullptr)
      channel_ = grpc::CreateChannel(cluster_->address(), grpc::InsecureChannelCredentials());
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(20)));
    grpc::CompletionQueue queue;
    const auto stream = stub.PrepareCall(&context, "/tandem.v1.Tandem/" + method, &queue);
    void* tag = nullptr;
    bool ok = false;
    const grpc::Slice slice(bytes);
    grpc::ByteBuffer request(&slice, 1);
    stream->StartCall(nullptr);
    queue.Next(&tag, &ok);
    stream->WriteLast(request, grpc::WriteOptions(), nullptr);
    queue.Next(&tag, &ok);
    for (grpc::ByteBuffer response; ok;) {
      stream->Read(&response, nullptr);
      queue.Next(&tag, &ok);
    }
    grpc::Status status;
    stream->Finish(&status, nullptr);
    queue.Next(&tag, &ok);
    return rpc::FromGrpc(status);
  }

  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(WireErrors, TextThatIsNotUtf8NamesTheFieldAndTheByte) {
  using R = v1::GenerateRequest;
  const struct {
    std::function<void(R&)> spoil;
    std::vector<std::string> named;
  } cases[] = {
      {[](R& r) { r.set_text("abc\xff"); }, {"text:", "byte 3 of 4"}},
      {[](R& r) { r.set_text("caf\xc3"); }, {"text:", "byte 3 of 4"}},               // cut short
      {[](R& r) { r.set_text("\xed\xa0\x80 surrogate"); }, {"text:", "byte 0 of"}},  // CESU-8
      {[](R& r) { r.set_text("\xc0\xaf overlong"); }, {"text:", "byte 0 of"}},
      {[](R& r) {
         r.mutable_chat()->add_messages()->set_content("fine");
         r.mutable_chat()->add_messages()->set_content("not \x80 fine");
       },
       {"chat.messages[1].content:", "byte 4 of 10"}},
      {[](R& r) { r.mutable_chat()->add_messages()->set_role("\xfe"); },
       {"chat.messages[0].role:", "byte 0 of 1"}},
      {[](R& r) { r.mutable_chat()->set_tools_json("[\"\xff\"]"); },
       {"chat.tools_json:", "byte 2"}},
      {[](R& r) { r.set_request_id("r\xff"); }, {"request_id:", "byte 1"}},
      {[](R& r) { r.set_model("m\xff"); }, {"model:", "byte 1"}},
      {[](R& r) { r.set_cache_salt("s\xff"); }, {"cache_salt:", "byte 1"}},
      {[](R& r) {
         r.mutable_stop()->add_stop("ok");
         r.mutable_stop()->add_stop("\xff");
       },
       {"stop.stop[1]:", "byte 0"}},
  };
  for (const auto& one : cases) {
    R request = TokensRequest(40, 4);
    one.spoil(request);
    const absl::Status status = cluster_->Generate(request).status;
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status;
    for (const std::string& text : one.named)
      EXPECT_THAT(std::string(status.message()), HasSubstr(text));
    EXPECT_THAT(std::string(status.message()), HasSubstr("UTF-8"));
  }
  // What is UTF-8, however odd, is text.
  R odd = TokensRequest(1, 4);
  odd.set_text(std::string("\0 \xef\xbf\xbd \xf4\x8f\xbf\xbf", 11));
  EXPECT_OK(cluster_->Generate(odd).status);
}

TEST_F(WireErrors, TheOtherMethodsSayItToo) {
  v1::TokenizeRequest tokenize;
  tokenize.set_text("x\xff");
  EXPECT_THAT(
      client().Tokenize(tokenize),
      StatusIs(StatusCode::kInvalidArgument, AllOf(HasSubstr("text:"), HasSubstr("byte 1 of 2"))));
  tokenize.mutable_chat()->add_messages()->set_content("\xff");
  EXPECT_THAT(client().Tokenize(tokenize),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("chat.messages[0].content:")));
  EXPECT_THAT(SendRaw("Abort", std::string("\x0a\x01\xff", 3)),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("request_id:")));
  EXPECT_OK(SendRaw("Abort", std::string("\x0a\x01x", 3)));  // idempotent: no request has that id

  v1::DetokenizeRequest detokenize;
  detokenize.add_ids(65);
  detokenize.add_ids(259);
  EXPECT_THAT(client().Detokenize(detokenize),
              StatusIs(StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("259 at index 1"), HasSubstr("vocabulary of 259"))));
}

TEST_F(WireErrors, GarbageIsNoRequest) {
  const std::string truncated(
      "\x1a\x7f"
      "abc");  // announces 127 bytes of text, has 3
  for (const char* method : {"Generate", "Tokenize", "Abort"}) {
    EXPECT_THAT(SendRaw(method, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
                StatusIs(StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("11 bytes"), HasSubstr("not a well-formed"),
                               HasSubstr(absl::StrCat("tandem.v1.", method, "Request")))));
    EXPECT_THAT(SendRaw(method, truncated),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr("not a well-formed")));
  }
  EXPECT_THAT(SendRaw("Generat", ""), StatusIs(StatusCode::kUnimplemented, ::testing::_));

  // Damaged copies of a real request: served or refused, never worse. What became a search of many
  // beams may take longer than is waited for.
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::mt19937_64 random(seed);
  v1::GenerateRequest request = TokensRequest(60, 3);
  request.mutable_stop()->add_stop("stop here");
  request.set_cache_salt("salt");
  const std::string whole = request.SerializeAsString();
  for (int i = 0; i < 300; ++i) {
    std::string damaged = whole;
    for (int n = 1 + static_cast<int>(random() % 3); n > 0; --n)
      damaged[random() % damaged.size()] = static_cast<char>(random());
    if (random() % 4 == 0) damaged.resize(random() % damaged.size());
    const absl::Status status = SendRaw("Generate", damaged);
    v1::GenerateRequest sent;
    if (absl::IsDeadlineExceeded(status) && sent.ParseFromString(damaged) &&
        sent.beam_search().width() > 3)
      continue;
    EXPECT_THAT(status.code(), ::testing::AnyOf(StatusCode::kOk, StatusCode::kInvalidArgument,
                                                StatusCode::kNotFound, StatusCode::kUnimplemented))
        << "damaged copy " << i << ": " << status;
  }
}

}  // namespace
}  // namespace tandem::testing
