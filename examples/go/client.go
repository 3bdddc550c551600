// Calls a pagewire service with the code that protoc generates from its .proto files.
//
//	./client ADDRESS stream 'The capital of France is'
//	./client ADDRESS unary  'The capital of France is'
//	./client ADDRESS cancel '1, 2, 3,'
//	./client ADDRESS chat   'What is the capital of Japan?'
//
// TOKEN=pw_... is the token of a server that asks for one, CA=ca.pem the authority of a server that uses TLS.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	v1 "pagewire/v1"
)

// gRPC 1.33, which Debian 12 has, encodes by a library that is older than the generated code. Later versions of gRPC need
// none of this.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(message interface{}) ([]byte, error) {
	return proto.Marshal(message.(proto.Message))
}

func (codec) Unmarshal(data []byte, message interface{}) error {
	return proto.Unmarshal(data, message.(proto.Message))
}

func init() {
	encoding.RegisterCodec(codec{})
}

func connect(address string) (*grpc.ClientConn, error) {
	ca := os.Getenv("CA")
	if ca == "" {
		return grpc.Dial(address, grpc.WithInsecure())
	}
	tls, err := credentials.NewClientTLSFromFile(ca, "")
	if err != nil {
		return nil, err
	}
	return grpc.Dial(address, grpc.WithTransportCredentials(tls))
}

// Call credentials travel with TLS only; metadata travels with and without it.
func authorized(ctx context.Context) context.Context {
	token := os.Getenv("TOKEN")
	if token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
}

// Absent fields take the model's defaults; 0 is a value.
func request(prompt *v1.Prompt) *v1.GenerateRequest {
	return &v1.GenerateRequest{
		Prompt:   prompt,
		Sampling: &v1.SamplingParams{Temperature: proto.Float32(0)},
		Stopping: &v1.StoppingCriteria{MaxTokens: proto.Uint32(40)},
	}
}

func plain(text string) *v1.Prompt {
	return &v1.Prompt{Kind: &v1.Prompt_Text{Text: text}}
}

func conversation(text string) *v1.Prompt {
	part := &v1.ContentPart{Part: &v1.ContentPart_Text{Text: text}}
	message := &v1.ChatMessage{Role: "user", Content: []*v1.ContentPart{part}}
	return &v1.Prompt{Kind: &v1.Prompt_Chat{Chat: &v1.Chat{Messages: []*v1.ChatMessage{message}}}}
}

// Text as it is generated. The last message carries the token counts.
func stream(ctx context.Context, client v1.GenerationServiceClient, request *v1.GenerateRequest) (*v1.Usage, error) {
	messages, err := client.Generate(ctx, request)
	if err != nil {
		return nil, err
	}
	var usage *v1.Usage
	for {
		message, err := messages.Recv()
		if err == io.EOF {
			return usage, nil
		}
		if err != nil {
			return nil, err
		}
		for _, sequence := range message.Sequences {
			fmt.Print(sequence.Text)
		}
		if message.Usage != nil {
			usage = message.Usage
		}
	}
}

// One answer, when it is complete.
func unary(ctx context.Context, client v1.GenerationServiceClient, request *v1.GenerateRequest) error {
	response, err := client.GenerateUnary(ctx, request)
	if err != nil {
		return err
	}
	output := response.Sequences[0]
	fmt.Printf("%s\n[%s]\n", output.Text, output.GetFinish().GetReason())
	return nil
}

// Cancelling the call's context ends the request on the server and frees its memory.
func cancel(ctx context.Context, client v1.GenerationServiceClient, request *v1.GenerateRequest) error {
	request.Stopping = &v1.StoppingCriteria{MaxTokens: proto.Uint32(900), IgnoreEos: proto.Bool(true)}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	messages, err := client.Generate(ctx, request)
	if err != nil {
		return err
	}
	if _, err = messages.Recv(); err != nil {
		return err
	}
	stop()
	for err == nil {
		_, err = messages.Recv()
	}
	if status.Code(err) != codes.Canceled {
		return err
	}
	fmt.Println("[CANCELLED]")
	return nil
}

func run(address, command, text string) error {
	connection, err := connect(address)
	if err != nil {
		return err
	}
	defer connection.Close()
	client, ctx := v1.NewGenerationServiceClient(connection), authorized(context.Background())
	switch command {
	case "stream":
		usage, err := stream(ctx, client, request(plain(text)))
		if err == nil {
			fmt.Printf("\n[%d + %d tokens]\n", usage.GetPromptTokens(), usage.GetCompletionTokens())
		}
		return err
	case "chat":
		_, err := stream(ctx, client, request(conversation(text)))
		fmt.Println()
		return err
	case "unary":
		return unary(ctx, client, request(plain(text)))
	case "cancel":
		return cancel(ctx, client, request(plain(text)))
	}
	return fmt.Errorf("unknown command %s", command)
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: client ADDRESS stream|unary|cancel|chat TEXT")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, status.Convert(err).Message())
		os.Exit(1)
	}
}
