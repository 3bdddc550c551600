"""Drives a service with tritonclient, and prints what it says as JSON. A process of its own: the messages of
that package have the names of ours, and a process can hold only one of the two."""

import json
import queue
import sys

import numpy as np
import tritonclient.grpc as triton


def main(address: str, model: str, prompt: str) -> None:
    """Asks for the same text in one answer and in a stream, and for an error."""
    client = triton.InferenceServerClient(address)
    found = {
        "live": client.is_server_live() and client.is_server_ready() and client.is_model_ready(model),
        "server": client.get_server_metadata().name,
        "platform": client.get_model_metadata(model).platform,
    }
    answer = client.infer(model, tensors(prompt, stream=False), request_id="one")
    found["text"] = text_of(answer)
    answers: queue.Queue = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    parts: list[str] = []
    while len(parts) < 2:  # a busy server may send all at once; a test waits until it does not
        client.async_stream_infer(
            model, tensors(prompt, stream=True), request_id="two", enable_empty_final_response=True
        )
        parts = parts_until_the_final_one(answers)
    found["parts"] = parts
    client.async_stream_infer(model, tensors(prompt, stream=True, max_tokens=-1))
    _, error = answers.get()
    found["error"] = error.message()
    client.stop_stream()
    print(json.dumps(found))


def tensors(prompt: str, *, stream: bool, max_tokens: int = 24) -> list[triton.InferInput]:
    """The inputs of a request."""
    values = {
        "text_input": np.array([prompt.encode()], dtype=object),
        "max_tokens": np.array([max_tokens], dtype=np.int32),
        "temperature": np.array([0], dtype=np.float32),
        "stream": np.array([stream]),
    }
    inputs = []
    for name, value in values.items():
        inputs.append(triton.InferInput(name, value.shape, triton.np_to_triton_dtype(value.dtype)))
        inputs[-1].set_data_from_numpy(value)
    return inputs


def text_of(result: triton.InferResult) -> str:
    """The text of an answer."""
    return str(result.as_numpy("text_output")[0].decode())


def parts_until_the_final_one(answers: "queue.Queue") -> list[str]:
    """The texts of one request's answers."""
    parts = []
    while True:
        result, error = answers.get()
        assert error is None, error
        if result.get_response().parameters["triton_final_response"].bool_param:
            return parts
        parts.append(text_of(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
