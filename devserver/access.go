// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"context"
	"fmt"
	"net"
	"slices"

	"k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// CheckLoopback refuses an address that other machines can reach.
func CheckLoopback(address net.IP) error {
	if address.IsLoopback() {
		return nil
	}
	return fmt.Errorf("%s is not a loopback address: a server without a cluster is for this machine only, on 127.0.0.1 or ::1", address)
}

// protect lets the client of the credentials in, and nobody else: a client without
// a certificate of our authority gets 401, another user gets 403. That holds
// for health checks and metrics too.
func (c *credentials) protect(config *genericapiserver.Config) error {
	authority, err := dynamiccertificates.NewStaticCAContent("devserver client authority", c.ca)
	if err != nil {
		return err
	}
	config.Authentication.Authenticator = x509.NewDynamic(authority.VerifyOptions, x509.CommonNameUserConversion)
	config.Authorization.Authorizer = authorizer.AuthorizerFunc(allowClient)
	return config.Authentication.ApplyClientCert(authority, config.SecureServing)
}

func allowClient(_ context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	user := attributes.GetUser()
	if user != nil && user.GetName() == clientUser && slices.Contains(user.GetGroups(), clientGroup) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionDeny, "only the client of the kubeconfig in the run directory has access", nil
}
