// A cluster of real processes whose clients need API keys, and calls of its tenants. Each tenant's
// name is its key.
// Thread safety: by the test's thread.
#pragma once

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "router/front_end/api_keys.h"
#include "tandem/v1/client.grpc.pb.h"
#include "tests/testing/http_client.h"
#include "tests/testing/program_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {

class TenantsTest : public ::testing::Test {
 protected:
  ~TenantsTest() override {
    if (cluster_ != nullptr) {
      EXPECT_EQ(cluster_->Stop(), "exit code 0");
    }
    std::remove(path_.c_str());
  }
  static std::string Line(const std::string& tenant, const std::string& settings = "") {
    return absl::StrCat(tenant, " ", router::Sha256Hex(tenant), " ", settings, "\n");
  }
  // Each tenant's name is its key.
  void Start(const std::string& keys, std::vector<std::string> flags = {}) {
    std::ofstream(path_) << keys;
    flags.insert(flags.begin(), {"--engine=hash", "--kv-blocks=256", "--api-keys=" + path_});
    auto cluster = TestCluster::Start(flags);
    ASSERT_OK(cluster.status());
    cluster_ = *std::move(cluster);
    stub_ = v1::Tandem::NewStub(
        grpc::CreateChannel(cluster_->address(), grpc::InsecureChannelCredentials()));
  }
  static void Authorize(grpc::ClientContext& context, const std::string& tenant) {
    context.AddMetadata("authorization", "Bearer " + tenant);
  }
  static v1::GenerateRequest Request(const std::string& id, int max_tokens) {
    v1::GenerateRequest request;
    request.set_request_id(id);
    request.set_text("a prompt that is long enough to fill more than one block of the cache");
    request.mutable_stop()->set_max_tokens(max_tokens);
    request.mutable_stop()->set_ignore_eos(true);
    return request;
  }
  // A stream whose first token has come.
  struct OpenStream {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader;
    // To the end; the last message's Finished.
    grpc::Status Read(v1::Finished* finished = nullptr) {
      v1::GenerateResponse part;
      while (reader->Read(&part)) {
        if (part.has_finished() && finished != nullptr) *finished = part.finished();
      }
      return reader->Finish();
    }
  };
  std::unique_ptr<OpenStream> Begin(const std::string& tenant, const v1::GenerateRequest& request) {
    auto running = std::make_unique<OpenStream>();
    Authorize(running->context, tenant);
    running->reader = stub_->Generate(&running->context, request);
    v1::GenerateResponse part;
    while (running->reader->Read(&part) && !part.has_delta()) {
    }
    EXPECT_TRUE(part.has_delta());
    return running;
  }
  grpc::Status Generate(const std::string& tenant, const v1::GenerateRequest& request,
                        v1::Finished* finished = nullptr) {
    OpenStream running;
    Authorize(running.context, tenant);
    running.reader = stub_->Generate(&running.context, request);
    return running.Read(finished);
  }
  grpc::Status Abort(const std::string& tenant, const std::string& id) {
    grpc::ClientContext context;
    Authorize(context, tenant);
    v1::AbortRequest request;
    request.set_request_id(id);
    v1::AbortResponse response;
    return stub_->Abort(&context, request, &response);
  }
  grpc::Status Trace(const std::string& tenant, const std::string& id, v1::RequestTrace& trace) {
    grpc::ClientContext context;
    Authorize(context, tenant);
    v1::GetTraceRequest request;
    request.set_request_id(id);
    v1::GetTraceResponse response;
    const grpc::Status status = stub_->GetTrace(&context, request, &response);
    trace = response.trace();
    return status;
  }
  // The names of the requests that run, as `tenant` sees them.
  std::vector<std::string> Running(const std::string& tenant, int32_t limit = 0) {
    grpc::ClientContext context;
    Authorize(context, tenant);
    v1::ListRequestsRequest request;
    request.set_limit(limit);
    v1::ListRequestsResponse response;
    const grpc::Status status = stub_->ListRequests(&context, request, &response);
    if (!status.ok()) return {status.error_message()};
    std::vector<std::string> names;
    for (const v1::RunningRequest& running : response.requests())
      names.push_back(running.request_id());
    return names;
  }
  int AskModels(const std::string& key) {
    return Ask(cluster_->http_address(),
               GetOf("/v1/models", "authorization: Bearer " + key + "\r\n"))
        .status;
  }

  const std::string path_ = absl::StrCat(::testing::TempDir(), "/tenants-", ::getpid());
  std::unique_ptr<TestCluster> cluster_;
  std::unique_ptr<v1::Tandem::Stub> stub_;
};

}  // namespace tandem::testing
