// Goal: every server describes its services by reflection, gRPC's health service among them, so
// that clients can call it without this project's proto files; in both versions of the protocol;
// unless that is turned off.
#include "common/rpc/server.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>

#include <future>

#include "absl/strings/str_cat.h"
#include "common/telemetry/log.h"
#include "tandem/v1/fleet.grpc.pb.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr char kHealth[] = "grpc.health.v1.Health";
constexpr char kVersions[][9] = {"v1", "v1alpha"};

// The server's answer to one request of a version of the reflection protocol, which sets `field` to
// `text`; sets `ended` to how the call ended.
std::string Reflect(const Server& server, const std::string& version, int field,
                    const std::string& text, grpc::Status& ended) {
  const std::string method =
      absl::StrCat("/grpc.reflection.", version, ".ServerReflection/ServerReflectionInfo");
  grpc::GenericStub stub(grpc::CreateChannel(server.address(), grpc::InsecureChannelCredentials()));
  const grpc::Slice slice(absl::StrCat(std::string(1, static_cast<char>(field << 3 | 2)),
                                       std::string(1, static_cast<char>(text.size())), text));
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer reply;
  grpc::ClientContext context;
  std::promise<grpc::Status> end;
  stub.UnaryCall(&context, method, grpc::StubOptions(), &request, &reply,
                 [&end](grpc::Status status) { end.set_value(std::move(status)); });
  ended = end.get_future().get();
  if (!ended.ok()) return "";
  grpc::Slice bytes;
  EXPECT_TRUE(reply.DumpToSingleSlice(&bytes).ok());
  return std::string(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
}

std::string Reflect(const Server& server, const std::string& version, int field,
                    const std::string& text) {
  grpc::Status ended;
  const std::string answer = Reflect(server, version, field, text, ended);
  EXPECT_TRUE(ended.ok()) << ended.error_message();
  return answer;
}

TEST(Server, DescribesTheHealthService) {
  ASSERT_OK_AND_ASSIGN(const auto server, Server::Start("127.0.0.1:0", {}, {}));
  for (const char* version : kVersions) {
    EXPECT_THAT(Reflect(*server, version, /*list_services*/ 7, "*"), HasSubstr(kHealth));
    const std::string file = Reflect(*server, version, /*file_containing_symbol*/ 4, kHealth);
    for (const char* name : {"HealthCheckRequest", "HealthCheckResponse", "Watch", "NOT_SERVING"}) {
      EXPECT_THAT(file, HasSubstr(name));
    }
  }
}

TEST(Server, DescribesReflectionItself) {
  ASSERT_OK_AND_ASSIGN(const auto server, Server::Start("127.0.0.1:0", {}, {}));
  for (const char* version : kVersions) {
    const std::string name = absl::StrCat("grpc.reflection.", version, ".ServerReflection");
    EXPECT_THAT(Reflect(*server, version, /*list_services*/ 7, "*"), HasSubstr(name));
    EXPECT_THAT(Reflect(*server, version, /*file_containing_symbol*/ 4, name),
                HasSubstr("ExtensionNumberResponse"));
  }
}

TEST(Server, NamesWhatReflectionDoesNotKnow) {
  ASSERT_OK_AND_ASSIGN(const auto server, Server::Start("127.0.0.1:0", {}, {}));
  for (const int field : {3, 4, 6}) {  // a file, a symbol, a type's extensions
    EXPECT_THAT(Reflect(*server, "v1", field, "no.such.thing"),
                HasSubstr("no.such.thing: not known to this server"));
  }
  EXPECT_THAT(Reflect(*server, "v1", /*host*/ 1, "h"), HasSubstr("message_request: is missing"));
}

// Standard error is the log's; a library that has something to say does so at level debug.
TEST(Server, APortInUseIsToldOfOnce) {
  ASSERT_OK_AND_ASSIGN(const auto server, Server::Start("127.0.0.1:0", {}, {}));
  const auto start_again = [&] {
    ::testing::internal::CaptureStderr();
    EXPECT_THAT(Server::Start(server->address(), {}, {}).status(),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("is the port in use")));
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(start_again(), "");
  SetLogLevel(LogLevel::kDebug);
  const std::string debug = start_again();
  SetLogLevel(LogLevel::kInfo);
  EXPECT_THAT(debug, HasSubstr(" DEBUG gRPC says text="));
}

TEST(Server, DescribesNothingWithReflectionTurnedOff) {
  v1::Fleet::CallbackService service;
  ASSERT_OK_AND_ASSIGN(const auto server,
                       Server::Start("127.0.0.1:0", {&service}, {.reflection = false}));
  for (const char* version : kVersions) {
    grpc::Status ended;
    Reflect(*server, version, /*list_services*/ 7, "*", ended);
    EXPECT_EQ(ended.error_code(), grpc::StatusCode::UNIMPLEMENTED) << version;
  }
}

}  // namespace
}  // namespace tandem::rpc
