#include "common/rpc/reflection_service.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/impl/server_initializer.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/shown_text.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"

namespace tandem::rpc {
namespace {

namespace v1 = grpc::reflection::v1;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;

void Refuse(const std::string& what, v1::ServerReflectionResponse& response) {
  response.mutable_error_response()->set_error_code(grpc::StatusCode::NOT_FOUND);
  response.mutable_error_response()->set_error_message(
      absl::StrCat(Shown(what), ": not known to this server"));
}

// The file, and every file that it imports, each once.
void AddFiles(const FileDescriptor* root, v1::FileDescriptorResponse& response) {
  std::vector<const FileDescriptor*> waiting = {root};
  absl::flat_hash_set<const FileDescriptor*> seen = {root};
  while (!waiting.empty()) {
    const FileDescriptor* file = waiting.back();
    waiting.pop_back();
    google::protobuf::FileDescriptorProto description;
    file->CopyTo(&description);
    description.SerializeToString(response.add_file_descriptor_proto());
    for (int i = 0; i < file->dependency_count(); ++i) {
      if (seen.insert(file->dependency(i)).second) waiting.push_back(file->dependency(i));
    }
  }
}

class ReflectionService final : public v1::ServerReflection::Service {
 public:
  // Before the first call.
  void SetServices(std::vector<std::string> names) { names_ = std::move(names); }

  grpc::Status ServerReflectionInfo(
      grpc::ServerContext*,
      grpc::ServerReaderWriter<v1::ServerReflectionResponse, v1::ServerReflectionRequest>* stream)
      override {
    v1::ServerReflectionRequest request;
    while (stream->Read(&request)) {
      v1::ServerReflectionResponse response;
      response.set_valid_host(request.host());
      *response.mutable_original_request() = request;
      Answer(request, response);
      if (!stream->Write(response)) break;
    }
    return grpc::Status::OK;
  }

 private:
  void Answer(const v1::ServerReflectionRequest& request, v1::ServerReflectionResponse& response) {
    switch (request.message_request_case()) {
      case v1::ServerReflectionRequest::kListServices:
        for (const std::string& name : names_) {
          response.mutable_list_services_response()->add_service()->set_name(name);
        }
        return;
      case v1::ServerReflectionRequest::kFileByFilename:
        return AnswerFile(pool_.FindFileByName(request.file_by_filename()),
                          request.file_by_filename(), response);
      case v1::ServerReflectionRequest::kFileContainingSymbol:
        return AnswerFile(pool_.FindFileContainingSymbol(request.file_containing_symbol()),
                          request.file_containing_symbol(), response);
      case v1::ServerReflectionRequest::kFileContainingExtension:
        return AnswerExtension(request.file_containing_extension(), response);
      case v1::ServerReflectionRequest::kAllExtensionNumbersOfType:
        return AnswerNumbers(request.all_extension_numbers_of_type(), response);
      case v1::ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
        break;
    }
    response.mutable_error_response()->set_error_code(grpc::StatusCode::INVALID_ARGUMENT);
    response.mutable_error_response()->set_error_message(
        "message_request: is missing or unknown, expected one of the protocol's five requests");
  }
  static void AnswerFile(const FileDescriptor* file, const std::string& what,
                         v1::ServerReflectionResponse& response) {
    if (file == nullptr) return Refuse(what, response);
    AddFiles(file, *response.mutable_file_descriptor_response());
  }
  void AnswerExtension(const v1::ExtensionRequest& asked, v1::ServerReflectionResponse& response) {
    const auto* type = pool_.FindMessageTypeByName(asked.containing_type());
    const FieldDescriptor* field =
        type == nullptr ? nullptr : pool_.FindExtensionByNumber(type, asked.extension_number());
    AnswerFile(field == nullptr ? nullptr : field->file(),
               absl::StrCat(asked.containing_type(), " ", asked.extension_number()), response);
  }
  void AnswerNumbers(const std::string& name, v1::ServerReflectionResponse& response) {
    const auto* type = pool_.FindMessageTypeByName(name);
    if (type == nullptr) return Refuse(name, response);
    std::vector<const FieldDescriptor*> extensions;
    pool_.FindAllExtensions(type, &extensions);
    auto& numbers = *response.mutable_all_extension_numbers_response();
    numbers.set_base_type_name(name);
    for (const FieldDescriptor* field : extensions) numbers.add_extension_number(field->number());
  }

  const DescriptorPool& pool_ = *DescriptorPool::generated_pool();
  // Bound: the services of one server.
  std::vector<std::string> names_;
};

// Tells the service the server's other services once they are known.
class ReflectionPlugin final : public grpc::ServerBuilderPlugin {
 public:
  std::string name() override { return "tandem.reflection.v1"; }
  void InitServer(grpc::ServerInitializer* server) override { server->RegisterService(service_); }
  void Finish(grpc::ServerInitializer* server) override {
    service_->SetServices(*server->GetServiceList());
  }
  void ChangeArguments(const std::string&, void*) override {}
  bool has_sync_methods() const override { return true; }

 private:
  // Shared with the server, which may outlive the builder's plugins.
  const std::shared_ptr<ReflectionService> service_ = std::make_shared<ReflectionService>();
};

class ReflectionOption final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->push_back(std::make_unique<ReflectionPlugin>());
  }
};

// What gRPC's library calls the plugin that it adds to every server.
constexpr char kLibraryPlugin[] = "proto_server_reflection";

class NoReflectionOption final : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->erase(std::remove_if(plugins->begin(), plugins->end(),
                                  [](const std::unique_ptr<grpc::ServerBuilderPlugin>& plugin) {
                                    return plugin->name() == kLibraryPlugin;
                                  }),
                   plugins->end());
  }
};

}  // namespace

void RemoveReflection(grpc::ServerBuilder& builder) {
  builder.SetOption(std::make_unique<NoReflectionOption>());
}

void AddReflection(grpc::ServerBuilder& builder) {
  // The library adds v1alpha to every server of the process.
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  builder.SetOption(std::make_unique<ReflectionOption>());
}

}  // namespace tandem::rpc
