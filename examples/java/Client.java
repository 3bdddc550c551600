// Calls a pagewire service with the code that protoc generates from its .proto files.
//
//   java -cp ... Client ADDRESS stream|unary|cancel|chat TEXT        (Makefile: the class path)
//
// TOKEN=pw_... is the token of a server that asks for one, CA=ca.pem the authority of a server that uses TLS.

import io.grpc.Context;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.MetadataUtils;
import java.io.File;
import java.util.Iterator;
import pagewire.v1.Chat;
import pagewire.v1.ChatMessage;
import pagewire.v1.ContentPart;
import pagewire.v1.GenerateRequest;
import pagewire.v1.GenerateResponse;
import pagewire.v1.GenerationServiceGrpc.GenerationServiceBlockingStub;
import pagewire.v1.GenerationServiceGrpc;
import pagewire.v1.Prompt;
import pagewire.v1.SamplingParams;
import pagewire.v1.SequenceOutput;
import pagewire.v1.StoppingCriteria;
import pagewire.v1.Usage;

public final class Client {
  private static final int MAX_TOKENS = 40;

  private static ManagedChannel connect(String address) throws Exception {
    NettyChannelBuilder builder = NettyChannelBuilder.forTarget(address);
    String authority = System.getenv("CA");
    if (authority == null) return builder.usePlaintext().build();
    return builder.sslContext(GrpcSslContexts.forClient().trustManager(new File(authority)).build()).build();
  }

  // Call credentials travel with TLS only; metadata travels with and without it.
  private static GenerationServiceBlockingStub stub(ManagedChannel channel) {
    GenerationServiceBlockingStub stub = GenerationServiceGrpc.newBlockingStub(channel);
    String token = System.getenv("TOKEN");
    if (token == null) return stub;
    Metadata metadata = new Metadata();
    metadata.put(Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER), "Bearer " + token);
    return stub.withInterceptors(MetadataUtils.newAttachHeadersInterceptor(metadata));
  }

  // Absent fields take the model's defaults; 0 is a value.
  private static GenerateRequest.Builder request(Prompt.Builder prompt) {
    return GenerateRequest.newBuilder()
        .setPrompt(prompt)
        .setSampling(SamplingParams.newBuilder().setTemperature(0))
        .setStopping(StoppingCriteria.newBuilder().setMaxTokens(MAX_TOKENS));
  }

  private static Prompt.Builder text(String text) {
    return Prompt.newBuilder().setText(text);
  }

  private static Prompt.Builder conversation(String text) {
    ChatMessage.Builder message =
        ChatMessage.newBuilder().setRole("user").addContent(ContentPart.newBuilder().setText(text));
    return Prompt.newBuilder().setChat(Chat.newBuilder().addMessages(message));
  }

  // Text as it is generated. The last message carries the token counts.
  private static Usage stream(GenerationServiceBlockingStub stub, GenerateRequest request) {
    Usage usage = Usage.getDefaultInstance();
    for (Iterator<GenerateResponse> messages = stub.generate(request); messages.hasNext(); ) {
      GenerateResponse message = messages.next();
      for (SequenceOutput sequence : message.getSequencesList()) {
        System.out.print(sequence.getText());
        System.out.flush();
      }
      if (message.hasUsage()) usage = message.getUsage();
    }
    return usage;
  }

  // One answer, when it is complete.
  private static void unary(GenerationServiceBlockingStub stub, GenerateRequest request) {
    SequenceOutput output = stub.generateUnary(request).getSequences(0);
    System.out.printf("%s%n[%s]%n", output.getText(), output.getFinish().getReason());
  }

  // Cancelling the call ends the request on the server and frees its memory.
  private static void cancel(GenerationServiceBlockingStub stub, GenerateRequest.Builder request) {
    request.setStopping(StoppingCriteria.newBuilder().setMaxTokens(900).setIgnoreEos(true));
    Context.CancellableContext context = Context.current().withCancellation();
    context.run(
        () -> {
          Iterator<GenerateResponse> messages = stub.generate(request.build());
          messages.next();
          context.cancel(null);
          try {
            while (messages.hasNext()) messages.next();
          } catch (StatusRuntimeException error) {
            if (error.getStatus().getCode() != Status.Code.CANCELLED) throw error;
            System.out.println("[CANCELLED]");
          }
        });
  }

  public static void main(String[] arguments) throws Exception {
    if (arguments.length != 3) {
      System.err.println("usage: Client ADDRESS stream|unary|cancel|chat TEXT");
      System.exit(2);
    }
    String text = arguments[2];
    ManagedChannel channel = connect(arguments[0]);
    try {
      GenerationServiceBlockingStub stub = stub(channel);
      switch (arguments[1]) {
        case "stream":
          Usage usage = stream(stub, request(text(text)).build());
          System.out.printf("%n[%d + %d tokens]%n", usage.getPromptTokens(), usage.getCompletionTokens());
          break;
        case "chat":
          stream(stub, request(conversation(text)).build());
          System.out.println();
          break;
        case "unary":
          unary(stub, request(text(text)).build());
          break;
        case "cancel":
          cancel(stub, request(text(text)));
          break;
        default:
          throw new IllegalArgumentException("unknown command " + arguments[1]);
      }
    } catch (StatusRuntimeException error) {
      System.err.println(error.getStatus().getDescription());
      System.exit(1);
    } finally {
      channel.shutdownNow();
    }
  }
}
