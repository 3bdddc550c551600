// Calls a pagewire service with the code that protoc generates from its .proto files.
//
//   ./client ADDRESS stream 'The capital of France is'
//   ./client ADDRESS unary  'The capital of France is'
//   ./client ADDRESS cancel '1, 2, 3,'
//   ./client ADDRESS chat   'What is the capital of Japan?'
//
// TOKEN=pw_... is the token of a server that asks for one, CA=ca.pem the authority of a server that uses TLS.

#include <grpcpp/grpcpp.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>

#include "pagewire/v1/generation.grpc.pb.h"

namespace v1 = pagewire::v1;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string file(const std::string& path) {
  std::ifstream stream(path);
  if (!stream) throw std::runtime_error("cannot read " + path);
  std::ostringstream content;
  content << stream.rdbuf();
  return content.str();
}

std::unique_ptr<v1::GenerationService::Stub> connect(const std::string& address) {
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::InsecureChannelCredentials();
  if (!variable("CA").empty()) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = file(variable("CA"));
    credentials = grpc::SslCredentials(options);
  }
  return v1::GenerationService::NewStub(grpc::CreateChannel(address, credentials));
}

// gRPC's call credentials travel with TLS only; metadata travels with and without it.
void authorize(grpc::ClientContext& context) {
  if (!variable("TOKEN").empty()) context.AddMetadata("authorization", "Bearer " + variable("TOKEN"));
}

// Absent fields take the model's defaults; 0 is a value.
v1::GenerateRequest request(const std::string& text) {
  v1::GenerateRequest request;
  request.mutable_prompt()->set_text(text);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_max_tokens(40);
  return request;
}

v1::GenerateRequest conversation(const std::string& text) {
  v1::GenerateRequest request = ::request("");
  v1::ChatMessage* message = request.mutable_prompt()->mutable_chat()->add_messages();
  message->set_role("user");
  message->add_content()->set_text(text);
  return request;
}

// Text as it is generated. The last message carries the token counts.
grpc::Status stream(v1::GenerationService::Stub& stub, const v1::GenerateRequest& request, v1::Usage* usage) {
  grpc::ClientContext context;
  authorize(context);
  auto reader = stub.Generate(&context, request);
  for (v1::GenerateResponse message; reader->Read(&message);) {
    for (const auto& sequence : message.sequences()) std::cout << sequence.text() << std::flush;
    if (message.has_usage()) *usage = message.usage();
  }
  return reader->Finish();
}

// One answer, when it is complete.
grpc::Status unary(v1::GenerationService::Stub& stub, const v1::GenerateRequest& request) {
  grpc::ClientContext context;
  authorize(context);
  v1::GenerateResponse response;
  grpc::Status status = stub.GenerateUnary(&context, request, &response);
  if (status.ok()) {
    const v1::SequenceOutput& output = response.sequences(0);
    std::cout << output.text() << "\n[" << v1::FinishReason_Name(output.finish().reason()) << "]\n";
  }
  return status;
}

// Cancelling the call ends the request on the server and frees its memory.
grpc::Status cancel(v1::GenerationService::Stub& stub, v1::GenerateRequest request) {
  request.mutable_stopping()->set_max_tokens(900);
  request.mutable_stopping()->set_ignore_eos(true);
  grpc::ClientContext context;
  authorize(context);
  auto reader = stub.Generate(&context, request);
  v1::GenerateResponse message;
  reader->Read(&message);
  context.TryCancel();
  while (reader->Read(&message)) {
  }
  grpc::Status status = reader->Finish();
  if (status.error_code() != grpc::StatusCode::CANCELLED) return status;
  std::cout << "[CANCELLED]\n";
  return grpc::Status::OK;
}

int main(int argc, char** argv) try {
  if (argc != 4) {
    std::cerr << "usage: client ADDRESS stream|unary|cancel|chat TEXT\n";
    return 2;
  }
  const std::string command = argv[2], text = argv[3];
  auto stub = connect(argv[1]);
  grpc::Status status;
  v1::Usage usage;
  if (command == "stream") {
    status = stream(*stub, request(text), &usage);
    if (status.ok()) {
      std::cout << "\n[" << usage.prompt_tokens() << " + " << usage.completion_tokens() << " tokens]\n";
    }
  } else if (command == "chat") {
    status = stream(*stub, conversation(text), &usage);
    std::cout << "\n";
  } else if (command == "unary") {
    status = unary(*stub, request(text));
  } else if (command == "cancel") {
    status = cancel(*stub, request(text));
  } else {
    std::cerr << "unknown command " << command << "\n";
    return 2;
  }
  if (status.ok()) return 0;
  std::cerr << status.error_message() << "\n";
  return 1;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
